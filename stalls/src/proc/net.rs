//! Figures of the network: `netstat`, `sockstat`, the range of local ports. All are those of the network namespace.

/// The value of `name` in `group`, for example `ListenOverflows` of `TcpExt`, in `/proc/net/netstat`.
pub fn parse_netstat(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let column = lines.next()?.split_ascii_whitespace().position(|known| known == name)?;
    lines.next()?.split_ascii_whitespace().nth(column)?.parse().ok()
}

/// How many connections are in TIME_WAIT, by `/proc/net/sockstat`.
pub fn parse_time_wait(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    line.split_ascii_whitespace().skip_while(|word| *word != "tw").nth(1)?.parse().ok()
}

/// How many local ports there are for outgoing connections, by `ip_local_port_range`.
pub fn parse_local_ports(text: &str) -> Option<u64> {
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u16>().ok());
    let (first, last) = (numbers.next()??, numbers.next()??);
    Some(u64::from(last.checked_sub(first)?) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn netstat_by_group_and_name() {
        let text = "TcpExt: A ListenOverflows ListenDrops\nTcpExt: 1 26 27\nIpExt: A\nIpExt: 9\n";
        assert_eq!(parse_netstat(text, "TcpExt", "ListenOverflows"), Some(26));
        assert_eq!(parse_netstat(text, "TcpExt", "ListenDrops"), Some(27));
        assert_eq!(parse_netstat(text, "IpExt", "A"), Some(9));
        assert_eq!(parse_netstat(text, "TcpExt", "B"), None);
        assert_eq!(parse_netstat("TcpExt: A B\nTcpExt: 1\n", "TcpExt", "B"), None);
        assert_eq!(parse_netstat("TcpExt: A\n", "TcpExt", "A"), None);
    }

    #[test]
    fn sockstat_and_ports() {
        let text = "sockets: used 30\nTCP: inuse 1 orphan 0 tw 28 alloc 1 mem 0\n";
        assert_eq!(parse_time_wait(text), Some(28));
        assert_eq!(parse_time_wait("TCP: inuse 1 tw"), None);
        assert_eq!(parse_local_ports("32768\t60999\n"), Some(28_232));
        assert_eq!(parse_local_ports("2 1"), None);
        assert_eq!(parse_local_ports("1"), None);
    }
}

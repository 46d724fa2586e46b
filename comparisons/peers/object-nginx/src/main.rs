//! Starts nginx as it is on Debian, which serves objects from files:
//! `object-nginx ADDR OBJECTS FOLDER [--sendfile on|off]`.
//!
//! This process becomes nginx, with one process and one thread, so that the matrix measures and ends nginx itself. FOLDER
//! is created for its configuration. nginx cannot listen on a free port of the kernel's choice, and without a master it
//! cannot inherit a socket (1.22 ends with a segmentation fault). So it gets a port that was free a moment before. Another
//! process (`object-nginx --announce ADDR`) waits until nginx accepts there, and prints the line that peers print.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Where Debian's packages have it.
const NGINX: &str = "/usr/sbin/nginx";

/// How long nginx may take until it listens. It takes some 10 ms.
const START: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (addr, objects, folder, sendfile) = match words[..] {
        ["--announce", addr] => return announce(addr),
        [addr, objects, folder] => (addr, objects, folder, "on"),
        [addr, objects, folder, "--sendfile", sendfile @ ("on" | "off")] => {
            (addr, objects, folder, sendfile)
        }
        _ => return failed(2, &"usage: ADDR OBJECTS FOLDER [--sendfile on|off]"),
    };
    let Ok(addr) = addr.parse() else {
        return failed(2, &format!("{addr:?} is not IP:PORT"));
    };
    failed(1, &start(addr, Path::new(objects), Path::new(folder), sendfile))
}

fn failed(code: u8, why: &dyn Display) -> ExitCode {
    let _ = writeln!(io::stderr(), "object-nginx: {why}");
    ExitCode::from(code)
}

/// Becomes nginx. Returns why that failed.
fn start(addr: SocketAddr, objects: &Path, folder: &Path, sendfile: &str) -> io::Error {
    match prepare(addr, objects, folder, sendfile) {
        Ok(mut nginx) => nginx.exec(),
        Err(error) => error,
    }
}

/// Prints the start-up line once a client can connect. nginx says itself why none can.
fn announce(addr: &str) -> ExitCode {
    let Ok(addr) = addr.parse::<SocketAddr>() else {
        return failed(2, &format!("{addr:?} is not IP:PORT"));
    };
    let until = Instant::now() + START;
    while Instant::now() < until {
        if TcpStream::connect(addr).is_ok() {
            peers_common::print_service("object", addr);
            return ExitCode::SUCCESS;
        }
        thread::sleep(Duration::from_millis(10));
    }
    failed(1, &format!("nginx does not listen on {addr} after {} s", START.as_secs()))
}

/// The command that this process becomes.
fn prepare(addr: SocketAddr, objects: &Path, folder: &Path, sendfile: &str) -> io::Result<Command> {
    if !Path::new(NGINX).exists() {
        let why = format!("there is no {NGINX}: comparisons/peers/install installs it");
        return Err(io::Error::new(ErrorKind::NotFound, why));
    }
    fs::create_dir_all(folder)?;
    // nginx resolves relative paths from other folders.
    let (objects, folder) = (objects.canonicalize()?, folder.canonicalize()?);
    let addr = TcpListener::bind(addr)?.local_addr()?;
    let file = folder.join("nginx.conf");
    fs::write(&file, configuration(addr, &objects, &folder, sendfile))?;
    Command::new(env::current_exe()?).args(["--announce", &addr.to_string()]).spawn()?;
    let mut nginx = Command::new(NGINX);
    nginx.arg("-p").arg(&folder).arg("-c").arg(&file).args(["-e", "stderr"]);
    Ok(nginx)
}

/// `sendfile` and `tcp_nopush` are on in Debian's configuration. Without the others nginx would close connections after
/// 1,000 requests or 75 s, open the file for each request, and write a line for each.
fn configuration(addr: SocketAddr, objects: &Path, folder: &Path, sendfile: &str) -> String {
    let (objects, folder, backlog) = (objects.display(), folder.display(), peers_common::BACKLOG);
    format!(
        r#"daemon off;
master_process off;
pid "{folder}/pid";
error_log stderr warn;
events {{
    worker_connections 1024;
}}
http {{
    access_log off;
    sendfile {sendfile};
    tcp_nopush on;
    keepalive_requests 1000000000;
    keepalive_timeout 1d;
    open_file_cache max=1000 inactive=1d;
    open_file_cache_valid 1d;
    default_type application/octet-stream;
    client_body_temp_path "{folder}/client";
    proxy_temp_path "{folder}/proxy";
    fastcgi_temp_path "{folder}/fastcgi";
    uwsgi_temp_path "{folder}/uwsgi";
    scgi_temp_path "{folder}/scgi";
    server {{
        listen {addr} backlog={backlog};
        location /object/ {{
            alias "{objects}/";
        }}
    }}
}}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_names_the_address_and_the_folders() {
        let addr = SocketAddr::from(([127, 0, 0, 1], 7));
        let text = configuration(addr, Path::new("/objects"), Path::new("/folder"), "off");
        for line in [
            "pid \"/folder/pid\";",
            "sendfile off;",
            "listen 127.0.0.1:7 backlog=1024;",
            "alias \"/objects/\";",
        ] {
            assert!(text.lines().any(|it| it.trim() == line), "{line}: {text}");
        }
    }
}

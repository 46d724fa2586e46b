//! Starts nginx as it is on Debian, which serves objects from files:
//! `object-nginx ADDR OBJECTS FOLDER [--sendfile on|off]`.
//!
//! This process becomes nginx, with one process and one thread, so that the matrix measures and ends nginx itself. FOLDER
//! is created for its configuration. nginx cannot listen on a free port of the kernel's choice. It therefore inherits a
//! socket that listens already, as a new nginx does from the old one (the variable `NGINX`). That socket is the same as
//! those of all peers.

#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::os::fd::IntoRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

use rustix::io::{FdFlags, fcntl_setfd};

/// Where Debian's packages have it.
const NGINX: &str = "/usr/sbin/nginx";

fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let (addr, objects, folder, sendfile) = match words[..] {
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

/// The command that this process becomes. The socket listens already: clients wait until nginx accepts them.
fn prepare(addr: SocketAddr, objects: &Path, folder: &Path, sendfile: &str) -> io::Result<Command> {
    if !Path::new(NGINX).exists() {
        let why = format!("there is no {NGINX}: comparisons/peers/install installs it");
        return Err(io::Error::new(ErrorKind::NotFound, why));
    }
    fs::create_dir_all(folder)?;
    // nginx resolves relative paths from other folders.
    let (objects, folder) = (objects.canonicalize()?, folder.canonicalize()?);
    let listener = peers_common::listen(addr)?;
    let addr = listener.local_addr()?;
    listener.set_nonblocking(true)?;
    fcntl_setfd(&listener, FdFlags::empty())?; // it stays open in nginx
    let file = folder.join("nginx.conf");
    fs::write(&file, configuration(addr, &objects, &folder, sendfile))?;
    let mut nginx = Command::new(NGINX);
    nginx.arg("-p").arg(&folder).arg("-c").arg(&file).args(["-e", "stderr"]);
    nginx.env("NGINX", format!("{};", listener.into_raw_fd()));
    peers_common::print_service("object", addr);
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

//! The HTTP server and client of the demo program, with just enough of HTTP for probes, redirects and
//! headers.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::Failure;

/// The file whose existence makes `/healthz` fail.
const SICK: &str = "/tmp/sick";

/// Serves the files below `dir`, and these paths, for ever:
///
/// * `/healthz`: 200, or 500 while [`SICK`] exists
/// * `/headers`: the request as received, which is also printed
/// * `/redirect`: to `/healthz`; `/redirect-away`: to another host
/// * `/status/N`: responds with code N; `/slow/SECONDS`: responds late
/// * `/hostname`: the host name of the server
/// * `/peer`: the address from which the server sees the client
pub(crate) fn serve(port: u16, dir: &Path) -> io::Result<()> {
    let dir: Arc<Path> = dir.into();
    // Listen on both address families if possible: a probe may use either.
    let listener = TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port)))?;
    println!("serving {} on port {port}", dir.display());
    for connection in listener.incoming() {
        let (connection, dir) = (connection?, Arc::clone(&dir));
        std::thread::spawn(move || {
            if let Err(error) = answer(connection, &dir) {
                eprintln!("connection: {error}");
            }
        });
    }
    Ok(())
}

fn answer(mut connection: TcpStream, dir: &Path) -> io::Result<()> {
    let mut request = String::new();
    let mut reader = BufReader::new(connection.try_clone()?);
    while reader.read_line(&mut request)? > 2 {}
    let Some(path) = request.split_whitespace().nth(1).map(str::to_owned) else {
        return Ok(()); // a TCP probe: connected and gone
    };
    let first = request.lines().next().unwrap_or_default();
    println!("{first}");
    let mut location = None;
    let (code, body) = match path.trim_start_matches('/').split('/').collect::<Vec<_>>().as_slice() {
        ["healthz"] if Path::new(SICK).exists() => (500, b"sick\n".to_vec()),
        ["healthz"] => (200, b"ok\n".to_vec()),
        [first, ..] if first.starts_with("headers") => {
            print!("{request}");
            (200, request.clone().into_bytes())
        }
        ["peer"] => {
            let address = connection.peer_addr()?.ip().to_canonical();
            (200, format!("{address}\n").into_bytes())
        }
        ["hostname"] => (200, fs::read("/proc/sys/kernel/hostname")?),
        ["redirect"] => {
            location = Some("/healthz".to_owned());
            (302, Vec::new())
        }
        ["redirect-away"] => {
            location = Some("http://elsewhere.invalid/".to_owned());
            (302, Vec::new())
        }
        ["status", code] => (code.parse().unwrap_or(400), Vec::new()),
        ["slow", seconds] => {
            std::thread::sleep(Duration::from_secs_f64(seconds.parse().unwrap_or(1.0)));
            (200, b"at last\n".to_vec())
        }
        _ => match read_below(dir, &path) {
            Ok(body) => (200, body),
            Err(error) => (404, format!("{error}\n").into_bytes()),
        },
    };
    write!(connection, "HTTP/1.1 {code} Demo\r\nContent-Length: {}\r\nConnection: close\r\n", body.len())?;
    if let Some(location) = location {
        write!(connection, "Location: {location}\r\n")?;
    }
    connection.write_all(b"\r\n")?;
    connection.write_all(&body)
}

fn read_below(dir: &Path, path: &str) -> io::Result<Vec<u8>> {
    let path = Path::new(if path == "/" { "index.html" } else { path });
    let inside: PathBuf = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    fs::read(dir.join(inside))
}

/// Prints the body. A status of 400 and above is an error that names the status.
pub(crate) fn get(url: &str) -> Result<(), Failure> {
    let rest = url.strip_prefix("http://").ok_or("only http:// is spoken here")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:80") };
    let mut connection = TcpStream::connect(&address)?;
    connection.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(connection, "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let answer = crate::read_all(connection)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or("no HTTP answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let code: u16 = head.split_whitespace().nth(1).ok_or("no status")?.parse()?;
    io::stdout().write_all(&answer[end + 4..])?;
    if code >= 400 {
        return Err(format!("HTTP {code}").into());
    }
    Ok(())
}

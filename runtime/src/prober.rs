//! Carries out httpGet and tcpSocket probes, and reads what exec probes said.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use smol::io::{AsyncReadExt, AsyncWriteExt};
use smol::net::TcpStream;

use crate::node::ProbeResult;
use crate::spec::container::ContainerPort;
use crate::spec::probe::PortOrName;

fn port_number(port: &PortOrName, ports: &[ContainerPort]) -> Option<u16> {
    match port {
        PortOrName::Port(port) => Some(*port),
        PortOrName::Name(name) => {
            ports.iter().find(|known| known.name.as_deref() == Some(name)).map(|known| known.container_port)
        }
    }
}

fn address(ip: IpAddr, host: Option<&str>, port: &PortOrName, ports: &[ContainerPort]) -> Result<SocketAddr, ProbeResult> {
    let port = port_number(port, ports).ok_or_else(|| ProbeResult::Error(format!("couldn't find port: {port:?}").into()))?;
    let ip = match host {
        Some(host) => host.parse().map_err(|_| ProbeResult::Error(format!("host {host} is not an address").into()))?,
        None => ip,
    };
    Ok(SocketAddr::new(ip, port))
}

async fn within(timeout: Duration, late: String, ask: impl Future<Output = ProbeResult>) -> ProbeResult {
    smol::future::or(ask, async {
        smol::Timer::after(timeout).await;
        ProbeResult::Failure(late.into())
    })
    .await
}

/// `httpGet`.
pub async fn http(
    ip: IpAddr,
    host: Option<&str>,
    port: &PortOrName,
    ports: &[ContainerPort],
    path: &str,
    headers: &[(String, String)],
    timeout: Duration,
) -> ProbeResult {
    let address = match address(ip, host, port, ports) {
        Ok(address) => address,
        Err(result) => return result,
    };
    let failed = |error: std::io::Error| ProbeResult::Failure(format!("Get \"http://{address}{path}\": {error}").into());
    let ask = async {
        let mut stream = match TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) => return failed(error),
        };
        let mut request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        if let Err(error) = stream.write_all(request.as_bytes()).await {
            return failed(error);
        }
        let mut answer = [0; 12];
        if let Err(error) = stream.read_exact(&mut answer).await {
            return failed(error);
        }
        match std::str::from_utf8(&answer[9..]).ok().and_then(|code| code.parse::<u16>().ok()) {
            Some(200..=399) => ProbeResult::Success,
            Some(code) => ProbeResult::Failure(format!("HTTP probe failed with statuscode: {code}").into()),
            None => ProbeResult::Failure(format!("Get \"http://{address}{path}\": malformed HTTP response").into()),
        }
    };
    let late = format!("Get \"http://{address}{path}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)");
    within(timeout, late, ask).await
}

/// `tcpSocket`.
pub async fn tcp(ip: IpAddr, host: Option<&str>, port: &PortOrName, ports: &[ContainerPort], timeout: Duration) -> ProbeResult {
    let address = match address(ip, host, port, ports) {
        Ok(address) => address,
        Err(result) => return result,
    };
    let ask = async {
        match TcpStream::connect(address).await {
            Ok(_) => ProbeResult::Success,
            Err(error) => ProbeResult::Failure(format!("dial tcp {address}: {error}").into()),
        }
    };
    within(timeout, format!("dial tcp {address}: i/o timeout"), ask).await
}

/// What an exec probe said by its exit code.
pub fn exec_result(_command: &[String], code: i32, output: &[u8]) -> ProbeResult {
    if code == 0 { ProbeResult::Success } else { ProbeResult::Failure(String::from_utf8_lossy(output).into()) }
}

/// An exec probe that was killed.
pub fn exec_timed_out(command: &[String], timeout: Duration) -> ProbeResult {
    ProbeResult::Failure(format!("command {command:?} timed out after {}s", timeout.as_secs()).into())
}

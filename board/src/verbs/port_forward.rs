//! `nodlet port-forward`: forwards ports of this machine to a pod.
//!
//! Each connection uses a WebSocket of its own, so that no connection delays another.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use lexopt::{Parser, ValueExt};
use nodlet_wire::spdy::{self, Frame};
use nodlet_wire::websocket::Opcode;
use serde_json::Value;

use crate::arguments::{Context, next_flag};
use crate::client::Client;
use crate::client::session::{self, Writer};
use crate::error::VerbError;
use crate::verb::{Outcome, Verb};
use crate::verbs::containers;

pub(crate) const VERB: Verb =
    Verb { name: "port-forward", summary: "Forward ports of this machine to a pod", run };

/// The stream numbers of the one connection that a WebSocket carries.
const ERROR: u32 = 1;
const DATA: u32 = 3;

/// The most bytes that are read at once.
const PIECE: usize = 32 * 1024;

/// Delay before accepting again after a failure to accept a connection.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, PartialEq, Eq)]
struct PortForward {
    pod: String,
    address: IpAddr,
    /// The ports to forward: the local number, and the pod's number or name.
    ports: Vec<(u16, String)>,
}

fn run(mut context: Context, mut parser: Parser) -> Outcome {
    let options = PortForward::parse(&mut context, &mut parser)?;
    let client = Client::new(&context)?;
    let path = context.pod(&options.pod);
    let object = client.json("GET", &path, None)?;
    let phase = object["status"]["phase"].as_str().unwrap_or("Unknown");
    if phase != "Running" {
        return Err(VerbError::new(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    let target = Arc::new((client, format!("{path}/portforward")));
    let mut listening = Vec::new();
    for (local, remote) in &options.ports {
        let remote = number(&object, remote)?;
        let listener = TcpListener::bind((options.address, *local)).map_err(|error| {
            VerbError::new(format!(
                "unable to listen on {}: {error}",
                std::net::SocketAddr::new(options.address, *local)
            ))
        })?;
        println!("Forwarding from {} -> {remote}", listener.local_addr()?);
        listening.push((listener, remote));
    }
    io::stdout().flush()?;
    let threads: Vec<_> = listening
        .into_iter()
        .map(|(listener, remote)| {
            let target = target.clone();
            std::thread::spawn(move || listen(&listener, remote, &target))
        })
        .collect();
    for thread in threads {
        let _ = thread.join();
    }
    Ok(ExitCode::FAILURE)
}

fn listen(listener: &TcpListener, remote: u16, target: &Arc<(Client, String)>) {
    for connection in listener.incoming() {
        let local = match connection {
            Ok(local) => local,
            // The local client has already disconnected.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            // For example the table of files is full. That may pass, but nothing reports when.
            Err(error) => {
                eprintln!("error: failed to accept a connection: {error}");
                std::thread::sleep(ACCEPT_AGAIN);
                continue;
            }
        };
        let target = target.clone();
        std::thread::spawn(move || {
            if let Err(failure) = forward(&target.0, &target.1, &local, remote) {
                eprintln!("{failure}");
            }
            let _ = local.shutdown(Shutdown::Both);
        });
    }
}

/// Forwards one connection until both sides have ended.
fn forward(client: &Client, target: &str, local: &TcpStream, remote: u16) -> Result<(), VerbError> {
    let (mut stream, mut messages) = session::connect(client, target, spdy::PROTOCOL)?;
    let writer = Writer::new(stream.try_clone()?);
    let (mut encoder, port) = (spdy::Encoder::default(), remote.to_string());
    for (id, kind, fin) in [(ERROR, "error", true), (DATA, "data", false)] {
        let headers = [("streamtype", kind), ("port", &port), ("requestid", "0")];
        writer.send(Opcode::Binary, &[&encoder.open(id, &headers, fin)])?;
    }
    let (up, mut from) = (writer.clone(), local.try_clone()?);
    std::thread::spawn(move || {
        let mut piece = vec![0; PIECE];
        while let Ok(read) = from.read(&mut piece) {
            if up.send(Opcode::Binary, &[&spdy::data(DATA, &piece[..read], read == 0)]).is_err() || read == 0
            {
                return;
            }
        }
    });
    let (mut decoder, mut why, mut piece) = (spdy::Decoder::default(), Vec::new(), vec![0; PIECE]);
    // The error stream ends last, after both directions of data.
    loop {
        while let Some(message) = messages.message().map_err(|error| VerbError::chain(&error))? {
            match message.opcode {
                Opcode::Binary => decoder.push(&message.payload),
                Opcode::Ping => writer.send(Opcode::Pong, &[&message.payload])?,
                Opcode::Close => return Ok(()),
                Opcode::Text | Opcode::Pong => {}
            }
        }
        while let Some(frame) = decoder.frame().map_err(|error| VerbError::chain(&error))? {
            match frame {
                Frame::Data { stream: DATA, bytes, fin } => {
                    let mut to = local;
                    if to.write_all(&bytes).is_err() {
                        // The local client has disconnected, which ends the whole connection.
                        let _ = stream.shutdown(Shutdown::Both);
                        return Ok(());
                    }
                    if fin {
                        let _ = local.shutdown(Shutdown::Write);
                    }
                }
                Frame::Data { stream: ERROR, bytes, fin } => {
                    why.extend(bytes);
                    if fin {
                        let _ = stream.shutdown(Shutdown::Both);
                        return match why.as_slice() {
                            [] => Ok(()),
                            why => Err(VerbError::new(String::from_utf8_lossy(why))),
                        };
                    }
                }
                Frame::Reset { .. } => return Err(VerbError::new("the agent rejected the connection")),
                Frame::Ping { id } => writer.send(Opcode::Binary, &[&spdy::pong(id)])?,
                Frame::Open { .. } | Frame::Data { .. } | Frame::GoAway | Frame::Other => {}
            }
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return Err(VerbError::disconnected("the connection to the agent was lost")),
            Ok(read) => messages.push(&piece[..read]),
        }
    }
}

/// The number of a pod's port, given as a number or as the name of a container's port.
fn number(pod: &Value, port: &str) -> Result<u16, VerbError> {
    if let Ok(number) = port.parse::<u16>() {
        return if number > 0 { Ok(number) } else { Err(VerbError::new("remote port must be > 0")) };
    }
    let lists = ["containers", "initContainers"];
    let containers = lists.iter().filter_map(|list| pod["spec"][*list].as_array()).flatten();
    let mut ports = containers.flat_map(|container| container["ports"].as_array().into_iter().flatten());
    ports
        .find(|known| known["name"] == port)
        .and_then(|known| known["containerPort"].as_u64()?.try_into().ok())
        .ok_or_else(|| VerbError::new(format!("the pod has no port named {port}")))
}

impl PortForward {
    fn parse(context: &mut Context, parser: &mut Parser) -> Result<PortForward, VerbError> {
        let mut address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut values = Vec::new();
        while let Some(flag) = next_flag(parser, &mut values)? {
            match flag.as_str() {
                "--address" => {
                    let text = parser.value()?.string()?;
                    let text = if text == "localhost" { "127.0.0.1" } else { &text };
                    address = text.parse().map_err(|_| {
                        context.wrong_use(format!(
                            "invalid address {text:?}: must be an IP address such as 127.0.0.1"
                        ))
                    })?;
                }
                other => context.namespaced(other, parser)?,
            }
        }
        let mut values = values.into_iter();
        let (Some(pod), ports @ 1..) = (values.next(), values.len()) else {
            return Err(context.wrong_use("TYPE/NAME and list of ports are required for port-forward"));
        };
        let mut pairs = Vec::with_capacity(ports);
        for text in values {
            let (local, remote) = text.split_once(':').unwrap_or((&text, &text));
            let local = match (local, text.contains(':')) {
                ("", true) => "0",
                // A named port has no local number: the kernel chooses one.
                (name, false) if name.parse::<u16>().is_err() => "0",
                (local, _) => local,
            };
            let local = local
                .parse()
                .map_err(|_| context.wrong_use(format!("error parsing local port {local:?}")))?;
            if remote.is_empty() || remote.contains(':') {
                return Err(
                    context.wrong_use(format!("invalid port format {text:?}: must be [LOCAL:]REMOTE"))
                );
            }
            pairs.push((local, remote.to_owned()));
        }
        Ok(PortForward { pod: containers::pod_name(&pod)?, address, ports: pairs })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::check;

    #[test]
    fn arguments_of_port_forward() {
        let web = |ports: &[(u16, &str)]| PortForward {
            pod: "web".into(),
            address: Ipv4Addr::LOCALHOST.into(),
            ports: ports.iter().map(|(local, remote)| (*local, (*remote).to_owned())).collect(),
        };
        let accepted = [
            ("web 80", web(&[(80, "80")])),
            ("pod/web 8080:80 :90", web(&[(8080, "80"), (0, "90")])),
            ("web metrics 1:metrics", web(&[(0, "metrics"), (1, "metrics")])),
        ];
        let rejected = [
            ("", "TYPE/NAME and list of ports are required"),
            ("web", "TYPE/NAME and list of ports are required"),
            ("web 70000:80", "error parsing local port \"70000\""),
            ("web 1:2:3", "invalid port format \"1:2:3\""),
            ("web 1:", "invalid port format \"1:\""),
            ("web 80 --address here", "invalid address \"here\""),
        ];
        check(VERB.name, PortForward::parse, accepted, &rejected);
    }

    #[test]
    fn ports_have_numbers_and_names() {
        let pod = json!({"spec": {"containers": [{}, {"ports": [{"name": "web", "containerPort": 80}]}]}});
        assert_eq!((number(&pod, "web").ok(), number(&pod, "81").ok()), (Some(80), Some(81)));
        let pod = json!({"spec": {"containers": [{}], "initContainers": [{"ports": [{"name": "web", "containerPort": 80}]}]}});
        assert_eq!(number(&pod, "web").ok(), Some(80));
        assert!(number(&pod, "0").is_err() && number(&pod, "absent").is_err());
    }
}

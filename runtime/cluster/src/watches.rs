//! All watches of a node, over one connection of HTTP/2; of a server that has only HTTP/1.1, one watch.
//!
//! A watch that is idle costs neither bytes nor a connection of its own: 65 watches over one connection need some 20 KiB
//! of memory, and over connections of their own each a handshake of 5 KB.

use nodlet_wire::http::{self, HttpError, Stream};
use nodlet_wire::http2::{Connection, Event, Http2Error};

use crate::api::{self, Api, ApiError, BODY, EVENT, WITHIN, within};
use crate::followed::Reference;

/// The object of a watch: a ConfigMap or Secret, or all objects of a resource, or `None` for the pods of the node.
pub type Target = Option<Reference>;

/// Bytes of bodies after which the server may send more.
const WINDOW: u32 = 16 * 1024;

/// What a watch has received.
#[derive(Debug)]
pub enum WatchMessage {
    /// An event.
    Event(Vec<u8>),
    /// The watch has ended.
    Ended,
    /// The server rejects the watch.
    Rejected(ApiError),
}

enum Transport {
    Http1(http::Connection),
    Http2 { connection: Connection, consumed: u32 },
}

struct Watch {
    target: Target,
    /// The number of its stream.
    stream: u32,
    /// The HTTP status of a rejection.
    code: Option<u16>,
    /// Bytes of which the end of the line is missing.
    line: Vec<u8>,
    consumed: u32,
}

/// The watches of a node. An error ends all of them.
#[derive(Default)]
pub struct Watches {
    transport: Option<Transport>,
    open: Vec<Watch>,
}

impl Watches {
    /// Whether there can be more than one watch: known once the first one was started.
    pub fn has_many(&self) -> bool {
        !matches!(self.transport, Some(Transport::Http1(_)))
    }

    /// Starts a watch.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn start(&mut self, api: &Api, target: Target, path: &str) -> Result<(), ApiError> {
        within(WITHIN, self.begin(api, target, path)).await
    }

    async fn begin(&mut self, api: &Api, target: Target, path: &str) -> Result<(), ApiError> {
        if self.transport.is_none() {
            let stream = Box::new(api.dial(true).await?);
            let is_http2 = stream.is_http2();
            let stream = Stream::Tls(stream);
            self.transport = Some(if is_http2 {
                Transport::Http2 {
                    connection: Connection::open(stream).await.map_err(of_http2)?,
                    consumed: 0,
                }
            } else {
                Transport::Http1(http::Connection::new(stream))
            });
        }
        let (mut stream, mut code) = (0, None);
        match &mut self.transport {
            Some(Transport::Http2 { connection, .. }) => {
                stream = connection.request(&api.fields(path), &[]).await.map_err(of_http2)?;
            }
            Some(Transport::Http1(connection)) => {
                let headers = api.headers();
                let head = connection.send(&api.request(path, &headers)).await.map_err(ApiError::Http)?;
                code = (head.status != 200).then_some(head.status);
            }
            None => {}
        }
        self.open.push(Watch { target, stream, code, line: Vec::new(), consumed: 0 });
        Ok(())
    }

    /// Ends a watch.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn stop(&mut self, target: &Target) -> Result<(), ApiError> {
        let place = self.open.iter().position(|watch| watch.target == *target);
        let Some(place) = place else { return Ok(()) };
        let watch = self.open.remove(place);
        match &mut self.transport {
            Some(Transport::Http2 { connection, .. }) => {
                connection.cancel(watch.stream).await.map_err(of_http2)
            }
            _ => Ok(()),
        }
    }

    /// Waits for news. May be dropped and called again without losing any.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn next(&mut self) -> Result<(Target, WatchMessage), ApiError> {
        loop {
            let (connection, consumed) = match &mut self.transport {
                None => match self.open.pop() {
                    Some(watch) => return Ok((watch.target, WatchMessage::Ended)),
                    None => std::future::pending().await,
                },
                Some(Transport::Http1(connection)) => {
                    let Some(watch) = self.open.first() else { std::future::pending().await };
                    if let Some(code) = watch.code {
                        let body = connection.body(BODY).await.map_err(ApiError::Http)?;
                        let news = WatchMessage::Rejected(rejection(code, &body));
                        (self.transport, self.open) = (None, Vec::new());
                        return Ok((None, news));
                    }
                    let line = connection.line(EVENT).await.map_err(ApiError::Http)?;
                    if let Some(line) = line {
                        return Ok((None, WatchMessage::Event(line)));
                    }
                    (self.transport, self.open) = (None, Vec::new());
                    return Ok((None, WatchMessage::Ended));
                }
                Some(Transport::Http2 { connection, consumed }) => (connection, consumed),
            };
            for watch in &mut self.open {
                if watch.code.is_none()
                    && let Some(end) = watch.line.iter().position(|byte| *byte == b'\n')
                {
                    let rest = watch.line.split_off(end + 1);
                    let line = std::mem::replace(&mut watch.line, rest);
                    return Ok((watch.target.clone(), WatchMessage::Event(line)));
                }
            }
            let used: usize = self.open.iter().map(|watch| watch.line.len()).sum();
            if used > BODY {
                return Err(ApiError::Http(HttpError::TooLarge));
            }
            if *consumed >= WINDOW {
                connection.enlarge(0, std::mem::take(consumed)).await.map_err(of_http2)?;
            }
            if let Some(watch) = self.open.iter_mut().find(|watch| watch.consumed >= WINDOW) {
                let by = std::mem::take(&mut watch.consumed);
                connection.enlarge(watch.stream, by).await.map_err(of_http2)?;
            }
            let (stream, event) = connection.next().await.map_err(of_http2)?;
            let place = self.open.iter().position(|watch| watch.stream == stream);
            let mut is_over = false;
            match event {
                Event::Data { bytes, end } => {
                    *consumed += bytes.len() as u32;
                    is_over = end;
                    if let Some(place) = place {
                        let watch = &mut self.open[place];
                        watch.consumed += bytes.len() as u32;
                        watch.line.extend_from_slice(&bytes);
                    }
                }
                Event::Headers { fields, end } => {
                    is_over = end;
                    let status = fields.iter().find(|field| field.name == b":status");
                    let code =
                        status.and_then(|status| std::str::from_utf8(&status.value).ok()?.parse().ok());
                    if let (Some(place), Some(code)) = (place, code)
                        && code != 200
                    {
                        self.open[place].code = Some(code);
                    }
                }
                Event::TooManyHeaders | Event::Reset(_) => is_over = true,
                // All begin anew, over another connection.
                Event::Refused | Event::Closing => self.transport = None,
            }
            if let (true, Some(place)) = (is_over, place) {
                let watch = self.open.remove(place);
                let news = match watch.code {
                    Some(code) => WatchMessage::Rejected(rejection(code, &watch.line)),
                    None => WatchMessage::Ended,
                };
                return Ok((watch.target, news));
            }
        }
    }
}

fn rejection(code: u16, body: &[u8]) -> ApiError {
    ApiError::of_status(code, &api::object(body).unwrap_or_default())
}

fn of_http2(error: Http2Error) -> ApiError {
    ApiError::Http(match error {
        Http2Error::Io(error) => HttpError::Io(error),
        Http2Error::Ended => HttpError::Ended,
        Http2Error::Broken(what) => HttpError::Malformed(what),
    })
}

//! Protocols as bytes in and bytes out, each of which reads what may be hostile. No code here, only the tour.
//!
//! * [`tls`]: the client's side of TLS, of crates without C.
//! * [`http`]: a client of HTTP/1.1, whose bodies may be streams. [`http2`] and [`hpack`]: as much of HTTP/2 as a gRPC call takes.
//! * [`random`]: bytes from the kernel.
//! * [`websocket`] and [`spdy`]: sessions of `kubectl exec`, `attach` and `port-forward`.

pub mod hpack;
pub mod http;
pub mod http2;
pub mod random;
pub mod spdy;
pub mod tls;
pub mod websocket;

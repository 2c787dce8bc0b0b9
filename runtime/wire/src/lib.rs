//! Protocols that turn bytes into data and back. Any input may be hostile. No code here, only the tour.
//!
//! * [`tls`]: TLS for clients and for the kubelet's server, built on crates without C code.
//! * [`http`]: the one reader of HTTP/1 responses, without I/O, and a client over TCP or TLS, whose bodies may be
//!   streams. [`http2`] and [`hpack`]: the part of HTTP/2 that a gRPC call needs.
//! * [`random`]: bytes from the kernel.
//! * [`timeout`]: a limit of the time for which a peer is awaited.
//! * [`websocket`] and [`spdy`]: sessions of `kubectl exec`, `attach` and `port-forward`.

pub mod gzip;
pub mod hpack;
pub mod http;
pub mod http2;
pub mod random;
pub mod spdy;
pub mod timeout;
pub mod tls;
pub mod websocket;

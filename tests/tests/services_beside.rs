//! Services beside the programs that clusters have for them: kube-proxy and a board with `--services=cluster` read the same
//! Services of one cluster, and CoreDNS and a board's own name server the same Services of two APIs. What a client sees is
//! compared.

mod connections;
mod message;
mod names;

//! The keys, certificates and kubeconfigs of a cluster.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use super::{ADDRESS, ControlPlane};

impl ControlPlane {
    pub(super) fn make_certificates(&self, keys: &str) {
        let config = self.pki("openssl.cnf");
        let text = format!(
            "[req]\ndistinguished_name = name\n[name]\n\
             [authority]\nbasicConstraints = critical,CA:TRUE\n\
             keyUsage = critical,keyCertSign,cRLSign,digitalSignature\n\
             [server]\nkeyUsage = digitalSignature\nextendedKeyUsage = serverAuth\n\
             subjectAltName = IP:127.0.0.1,IP:10.96.0.1,IP:10.0.2.2,IP:{ADDRESS},DNS:kubernetes,\
             DNS:kubernetes.default,DNS:kubernetes.default.svc\n\
             [client]\nkeyUsage = digitalSignature\nextendedKeyUsage = clientAuth\n"
        );
        fs::write(&config, text).expect("written");
        for (name, subject, kind) in [
            ("ca", "/CN=kubernetes", "authority"),
            ("apiserver", "/CN=kube-apiserver", "server"),
            ("admin", "/O=system:masters/CN=kubernetes-admin", "client"),
            ("kube-controller-manager", "/CN=system:kube-controller-manager", "client"),
            ("kube-scheduler", "/CN=system:kube-scheduler", "client"),
            ("to-nodes", "/O=system:masters/CN=kube-apiserver-kubelet-client", "client"),
            ("front-proxy", "/CN=front-proxy-client", "client"),
        ] {
            let mut command = Command::new("openssl");
            command
                .args(["req", "-x509", "-nodes", "-newkey"])
                .args(keys.split(' '))
                .args(["-days", "3650", "-subj", subject, "-extensions", kind])
                .arg("-config")
                .arg(&config)
                .arg("-keyout")
                .arg(self.pki(&format!("{name}.key")))
                .arg("-out")
                .arg(self.pki(&format!("{name}.crt")));
            if kind != "authority" {
                command.arg("-CA").arg(self.pki("ca.crt")).arg("-CAkey").arg(self.pki("ca.key"));
            }
            let output = command.output().expect("openssl can be run: `cargo xtask setup` installs it");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        let mut command = Command::new("openssl");
        command.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]);
        let status = command.arg(self.pki("accounts.key")).status().expect("openssl can be run");
        assert!(status.success(), "openssl makes the key of the service accounts");
        for name in ["admin", "kube-controller-manager", "kube-scheduler"] {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: plane\n\
                 contexts: [{{name: plane, context: {{cluster: plane, user: {name}}}}}]\n\
                 clusters: [{{name: plane, cluster: {{server: 'https://{}', certificate-authority: {}}}}}]\n\
                 users: [{{name: {name}, user: {{client-certificate: {}, client-key: {}}}}}]\n",
                self.server(),
                self.pki("ca.crt").display(),
                self.pki(&format!("{name}.crt")).display(),
                self.pki(&format!("{name}.key")).display(),
            );
            fs::write(self.dir().join(format!("{name}.kubeconfig")), text).expect("written");
        }
    }

    /// The hash of the public key of the cluster's authority.
    pub(super) fn authority_hash(&self) -> String {
        let run = |words: &[&str], input: &[u8]| {
            let mut command = Command::new("openssl");
            command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().expect("openssl can be run");
            child.stdin.take().expect("it is a pipe").write_all(input).expect("openssl reads it");
            child.wait_with_output().expect("it is a child").stdout
        };
        let pem = fs::read(self.authority()).expect("it was written");
        let key = run(&["pkey", "-pubin", "-outform", "der"], &run(&["x509", "-pubkey", "-noout"], &pem));
        crate::image::hex(&key)
    }
}

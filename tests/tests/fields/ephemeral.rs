//! The fields of ephemeral containers, which are added when their pod runs. Their text is JSON.

use super::Observation::{Log, Status};
use super::{Row, debug};

const ENDED: &str = r#""reason":"Completed""#;

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    debug("PodSpec.ephemeralContainers", Status, "@",
        &[("", r#""phase":"Running""#), (r#"{"name": "look", [[exit 3]]}"#, r#""exitCode":3"#)]),
    debug("EphemeralContainer.args", Log("look"), r#"{"name": "look", "image": "localhost/demo:1", "args": [@]}"#,
        &[(r#""print", "one""#, "one\n"), (r#""print", "two""#, "two\n")]),
    debug("EphemeralContainer.command", Log("look"), r#"{@ "name": "look", [[print one]]}"#,
        &[("", "one\n"), (r#""command": ["/bin/demo", "args", "two"],"#, "two\nprint\none\n")]),
    debug("EphemeralContainer.env", Log("look"), r#"{@ "name": "look", [[env]]}"#,
        &[("", "IMAGE=demo\n"), (r#""env": [{"name": "A", "value": "one"}],"#, "A=one\n")]),
    debug("EphemeralContainer.envFrom", Log("look"), r#"{@ "name": "look", [[env]]}"#,
        &[("", "IMAGE=demo\n"), (r#""envFrom": [{"secretRef": {"name": "mine"}}],"#, "word=hunter2\n")]),
    debug("EphemeralContainer.image", Log("look"), r#"{"name": "look", "image": "localhost/@:1", "args": ["env"]}"#,
        &[("demo", "IMAGE=demo\n"), ("other", "IMAGE=other\n")]),
    debug("EphemeralContainer.imagePullPolicy", Status, r#"{"name": "look", "image": "localhost/none:1", "imagePullPolicy": "@"}"#,
        &[("IfNotPresent", "Failed: Error: ErrImagePull"), ("Never", "Failed: Error: ErrImageNeverPull")]),
    debug("EphemeralContainer.name", Status, r#"{"name": "@", [[exit 0]]}"#,
        &[("look", r#""name":"look""#), ("other", r#""name":"other""#)]),
    debug("EphemeralContainer.securityContext", Log("look"), r#"{@ "name": "look", [[id]]}"#,
        &[("", "uid=0 "), (r#""securityContext": {"runAsUser": 7},"#, "uid=7 ")]),
    debug("EphemeralContainer.stdin", Log("look"), r#"{@ "name": "look", [[stat /proc/self/fd/0]]}"#,
        &[("", " /dev/null\n"), (r#""stdin": true,"#, " pipe:[")]),
    debug("EphemeralContainer.stdinOnce", Log("look"), r#"{@ "name": "look", "stdin": true, [[echo then print ended]]}"#,
        &[("", "typed\n"), (r#""stdinOnce": true,"#, "typed\nended\n")]).attached("look"),
    debug("EphemeralContainer.targetContainerName", Log("look"), r#"{@ "name": "look", [[cat /proc/1/cmdline]]}"#,
        &[("", "cat\0/proc/1/cmdline"), (r#""targetContainerName": "app","#, "/bin/demo\0sleep\0")]),
    debug("EphemeralContainer.terminationMessagePath", Status, r#"{@ "name": "look", [[write /tmp/said bye]]}"#,
        &[("", ENDED), (r#""terminationMessagePath": "/tmp/said","#, r#""message":"bye\n""#)]),
    debug("EphemeralContainer.terminationMessagePolicy", Status, r#"{@ "name": "look", [[print bye then exit 3]]}"#,
        &[("", r#""exitCode":3"#), (r#""terminationMessagePolicy": "FallbackToLogsOnError","#, r#""message":"bye\n""#)]),
    debug("EphemeralContainer.tty", Log("look"), r#"{"name": "look", [[tty]], "tty": @}"#,
        &[("true", "tty"), ("false", "not a tty")]),
    debug("EphemeralContainer.volumeMounts", Log("look"), r#"{@ "name": "look", [[ls /]]}"#,
        &[("", "proc\n"), (r#""volumeMounts": [{"name": "v", "mountPath": "/volume"}],"#, "volume\n")]),
    debug("EphemeralContainer.workingDir", Log("look"), r#"{@ "name": "look", [[cwd]]}"#,
        &[("", "/\n"), (r#""workingDir": "/srv","#, "/srv\n")]),
];

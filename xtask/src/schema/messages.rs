//! The numbers of fields in protobuf, from the `generated.proto` files of Kubernetes' types.

use std::collections::BTreeMap;

use nodlet_build::task::TaskError;

/// The messages by name, each with its fields by name: their type and number.
pub(super) struct Messages(BTreeMap<String, BTreeMap<String, (String, u8)>>);

impl Messages {
    /// Reads the text of `generated.proto` files.
    pub(super) fn read(text: &str) -> Result<Messages, TaskError> {
        let mut messages: BTreeMap<String, BTreeMap<String, (String, u8)>> = BTreeMap::new();
        let mut current = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("message ").and_then(|rest| rest.strip_suffix(" {")) {
                current = name.to_owned();
                messages.insert(current.clone(), BTreeMap::new());
            } else if let Some((head, number)) =
                line.strip_suffix(';').and_then(|line| line.rsplit_once(" = "))
                && ["optional ", "repeated ", "map<"].iter().any(|start| head.starts_with(start))
            {
                let (of, name) = head.rsplit_once(' ').ok_or_else(|| format!("{current}: {line}"))?;
                let of = of.rsplit(['.', ' ']).next().unwrap_or(of).to_owned();
                let number = number.parse().map_err(|_| format!("{current}.{name}: number {number}"))?;
                messages.entry(current.clone()).or_default().insert(name.to_owned(), (of, number));
            }
        }
        Ok(Messages(messages))
    }

    /// The number of a field in JSON: that of the message within its own that it is a field of, or 0, and its number there.
    /// Both are 0 for `apiVersion` and `kind` of an object, which stand beside its message.
    pub(super) fn number(&self, message: &str, field: &str) -> Result<(u8, u8), TaskError> {
        let fields = self.0.get(message).ok_or_else(|| format!("no protobuf message {message}"))?;
        if let Some((_, number)) = fields.get(field) {
            return Ok((0, *number));
        }
        let embedded = fields.values().find_map(|(of, within)| {
            let (_, number) = self.0.get(of)?.get(field)?;
            Some((*within, *number))
        });
        match (embedded, field) {
            (_, "apiVersion" | "kind") => Ok((0, 0)),
            (Some(found), _) => Ok(found),
            (None, _) => Err(TaskError(format!("the protobuf message {message} has no {field}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_numbers_of_their_messages() {
        let text = "message Volume {\n  // Name = 7;\n  optional string name = 1;\n\n  optional VolumeSource volumeSource = 2;\n}\n\
                    message VolumeSource {\n  optional .k8s.io.api.core.v1.HostPathVolumeSource hostPath = 1;\n  \
                    map<string, string> more = 31;\n}\n";
        let messages = Messages::read(text).expect("readable");
        assert_eq!(messages.number("Volume", "name").ok(), Some((0, 1)));
        assert_eq!(messages.number("Volume", "hostPath").ok(), Some((2, 1)));
        assert_eq!(messages.number("VolumeSource", "more").ok(), Some((0, 31)));
        assert_eq!(messages.number("Volume", "kind").ok(), Some((0, 0)));
        assert!(messages.number("Volume", "nfs").is_err() && messages.number("Pod", "spec").is_err());
        assert!(Messages::read("message A {\n optional string b = 300;\n}").is_err());
    }
}

//! The uid of a pod from a file: the same file with the same content on the same node gives the same uid, in
//! every run and every version of nodlet. Any change gives another uid, and so another pod.

use serde_json::Value;

/// The uid: 128 bits of FNV-1a as 32 hexadecimal digits, over the object as it was written (keys sorted, no
/// spaces, before defaults, which another version may change), then the node, then the file.
pub(super) fn uid(object: &Value, node: &str, file: &str) -> String {
    let mut hash = Fnv128a::new();
    hash.value(object);
    for salt in ["host:", node, "file:", file] {
        hash.write(salt.as_bytes());
    }
    format!("{:032x}", hash.0)
}

/// Five letters and digits for `metadata.generateName`, from Kubernetes' alphabet, which cannot form words.
pub(super) fn suffix(uid: &str) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut hash = Fnv128a::new();
    hash.write(uid.as_bytes());
    let mut rest = hash.0;
    let mut suffix = String::with_capacity(5);
    for _ in 0..5 {
        suffix.push(char::from(ALPHABET[(rest % 27) as usize]));
        rest /= 27;
    }
    suffix
}

struct Fnv128a(u128);

impl Fnv128a {
    const fn new() -> Self {
        Fnv128a(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn write(&mut self, bytes: &[u8]) {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(PRIME);
        }
    }

    /// Hashes a value as canonical JSON.
    fn value(&mut self, value: &Value) {
        match value {
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                self.write(b"{");
                for (key, value) in entries {
                    self.write(Value::from(key.as_str()).to_string().as_bytes());
                    self.write(b":");
                    self.value(value);
                    self.write(b",");
                }
                self.write(b"}");
            }
            Value::Array(list) => {
                self.write(b"[");
                for value in list {
                    self.value(value);
                    self.write(b",");
                }
                self.write(b"]");
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                self.write(value.to_string().as_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Fnv128a, suffix, uid};

    #[test]
    fn the_hash_is_fnv_1a() {
        let hash = |text: &str| {
            let mut hash = Fnv128a::new();
            hash.write(text.as_bytes());
            format!("{:032x}", hash.0)
        };
        assert_eq!(hash(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(hash("a"), "d228cb696f1a8caf78912b704e4a8964");
        assert_eq!(hash("foobar"), "343e1662793c64bf6f0d3597ba446f18");
    }

    #[test]
    fn the_uid_depends_only_on_content_node_and_file() {
        let object = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}});
        let first = uid(&object, "n", "/m/a.yaml");
        // A version that changes this value replaces every pod of every board.
        assert_eq!(first, "4ecdc7e03864ddd25e8e660566a43626");
        assert_ne!(first, uid(&object, "n", "/m/b.yaml"));
        assert_ne!(first, uid(&object, "o", "/m/a.yaml"));
        assert_ne!(first, uid(&json!({"metadata": {"name": "b"}}), "n", "/m/a.yaml"));
    }

    #[test]
    fn suffixes_have_five_letters_of_the_alphabet() {
        let one = suffix("b2c1c1de-1f6f-4a3b-9d55-000000000001");
        assert_eq!(one.len(), 5);
        assert!(one.bytes().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(&byte)));
        assert_ne!(one, suffix("b2c1c1de-1f6f-4a3b-9d55-000000000002"));
    }
}

//! Messages of D-Bus, as bytes and back: little endian when sent, either way when read, and of
//! bodies only what logind and the bus answer us with.

use std::os::fd::OwnedFd;

/// Bytes of a message that say how many there are.
pub(super) const FIXED: usize = 16;

/// No message that concerns us is longer.
const LONGEST: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Return,
    Error,
    Signal,
    Other,
}

/// The first value of a body, if we have a use for it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    None,
    Bool(bool),
    Text(String),
    /// In a variant.
    Time(u64),
}

/// A message that was read.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) member: String,
    /// The sender, as reported by the bus.
    pub(super) sender: String,
    pub(super) reply_to: u32,
    pub(super) body: Body,
    pub(super) descriptor: Option<OwnedFd>,
}

/// A call of a method, all of whose arguments are texts.
pub(super) fn call(
    serial: u32,
    [destination, path, interface, member]: [&str; 4],
    arguments: &[&str],
) -> Vec<u8> {
    let mut body = Vec::new();
    arguments.iter().for_each(|argument| text(&mut body, argument));
    let mut bytes = vec![b'l', 1, 0, 1];
    for number in [body.len() as u32, serial, 0] {
        bytes.extend(number.to_le_bytes());
    }
    for (code, kind, value) in
        [(1, b'o', path), (2, b's', interface), (3, b's', member), (6, b's', destination)]
    {
        align(&mut bytes, 8);
        bytes.extend([code, 1, kind, 0]);
        text(&mut bytes, value);
    }
    if !arguments.is_empty() {
        align(&mut bytes, 8);
        bytes.extend([8, 1, b'g', 0, arguments.len() as u8]);
        bytes.extend(arguments.iter().map(|_| b's'));
        bytes.push(0);
    }
    let fields = (bytes.len() - FIXED) as u32;
    bytes[12..FIXED].copy_from_slice(&fields.to_le_bytes());
    align(&mut bytes, 8);
    bytes.extend(body);
    bytes
}

fn align(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    align(bytes, 4);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

/// How long a message is that begins so.
pub(super) fn length(fixed: &[u8]) -> Option<usize> {
    let mut reader = Reader::new(fixed)?;
    reader.at = 4;
    let body = reader.number()? as usize;
    reader.at = 12;
    let fields = reader.number()? as usize;
    let whole = FIXED.checked_add(fields)?.checked_next_multiple_of(8)?.checked_add(body)?;
    (whole <= LONGEST).then_some(whole)
}

impl Message {
    /// Reads a whole message.
    pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
        let kind = match bytes.get(1)? {
            2 => Kind::Return,
            3 => Kind::Error,
            4 => Kind::Signal,
            _ => Kind::Other,
        };
        let mut reader = Reader::new(bytes)?;
        reader.at = 12;
        let end = FIXED.checked_add(reader.number()? as usize)?;
        let (mut member, mut sender, mut reply_to, mut error, mut signature) = ("", "", 0, "", "");
        while reader.at < end {
            reader.align(8)?;
            let (code, kind) = (reader.byte()?, reader.signature()?);
            match (code, kind) {
                (3, "s") => member = reader.text()?,
                (4, "s") => error = reader.text()?,
                (7, "s") => sender = reader.text()?,
                (5, "u") => reply_to = reader.number()?,
                (8, "g") => signature = reader.signature()?,
                (_, "s" | "o") => drop(reader.text()?),
                (_, "u") => drop(reader.number()?),
                (_, "g") => drop(reader.signature()?),
                // No field of a header is of another kind.
                _ => return None,
            }
        }
        (reader.at == end).then_some(())?;
        reader.align(8)?;
        let body = match signature.as_bytes().first() {
            Some(b'b') => Body::Bool(match reader.number()? {
                0 => false,
                1 => true,
                _ => return None,
            }),
            Some(b's') => Body::Text(match kind {
                Kind::Error => format!("{}: {error}", reader.text()?),
                Kind::Return | Kind::Signal | Kind::Other => reader.text()?.to_owned(),
            }),
            Some(b'v') => match reader.signature()? {
                "t" => {
                    reader.align(8)?;
                    Body::Time(reader.long()?)
                }
                _ => Body::None,
            },
            None if kind == Kind::Error => Body::Text(error.to_owned()),
            Some(_) | None => Body::None,
        };
        Some(Message {
            kind,
            member: member.to_owned(),
            sender: sender.to_owned(),
            reply_to,
            body,
            descriptor: None,
        })
    }
}

/// Goes over a message; `None` where it ends too early.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    big: bool,
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Option<Reader<'a>> {
        let big = match bytes.first()? {
            b'l' => false,
            b'B' => true,
            _ => return None,
        };
        Some(Reader { bytes, at: 0, big })
    }

    fn align(&mut self, to: usize) -> Option<()> {
        self.at = self.at.checked_next_multiple_of(to)?;
        (self.at <= self.bytes.len()).then_some(())
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4)?;
        let bytes = self.take(4)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn long(&mut self) -> Option<u64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(if self.big { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) })
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.number()? as usize;
        self.ended(length)
    }

    fn signature(&mut self) -> Option<&'a str> {
        let length = usize::from(self.byte()?);
        self.ended(length)
    }

    fn ended(&mut self, length: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }
}

//! The common parts of all messages: a header of fixed size, then attributes,
//! each a length, a kind and a value, aligned to four bytes.

use netlink_packet_core::DecodeError;

/// Bits of a kind that say how the value is written.
const HOW: u16 = 0xc000;

pub(crate) trait Message: Sized {
    /// The size of the header.
    const HEADER: usize;
    type Attribute: Attribute;

    fn write_header(&self, out: &mut Vec<u8>);
    fn attributes(&self) -> &[Self::Attribute];
    /// From a header of [`Self::HEADER`] bytes.
    fn from_parts(header: &[u8], attributes: Vec<Self::Attribute>) -> Self;

    fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_header(&mut out);
        write_all(self.attributes(), &mut out);
        out
    }

    fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (header, rest) = bytes
            .split_at_checked(Self::HEADER)
            .ok_or_else(|| DecodeError::from("a message is shorter than its header"))?;
        Ok(Self::from_parts(header, read_all(rest)?))
    }
}

pub(crate) trait Attribute: Sized {
    fn kind(&self) -> u16;
    fn write_value(&self, out: &mut Vec<u8>);
    /// A value that is not as its kind has it is kept as bytes.
    fn read(kind: u16, value: &[u8]) -> Self;
}

pub(crate) fn write_all<A: Attribute>(attributes: &[A], out: &mut Vec<u8>) {
    for attribute in attributes {
        write_one(attribute.kind(), out, |out| attribute.write_value(out));
    }
}

pub(crate) fn write_one(kind: u16, out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 2]);
    out.extend(kind.to_ne_bytes());
    value(out);
    // No attribute that we write is near 64 KiB.
    let length = u16::try_from(out.len() - start).unwrap_or(u16::MAX);
    out[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    out.resize(out.len().next_multiple_of(4), 0);
}

pub(crate) fn read_all<A: Attribute>(mut rest: &[u8]) -> Result<Vec<A>, DecodeError> {
    let mut attributes = Vec::new();
    while let [low, high, kind_low, kind_high, ..] = *rest {
        let length = usize::from(u16::from_ne_bytes([low, high]));
        let value = rest.get(4..length).ok_or_else(|| DecodeError::from("an attribute is cut off"))?;
        attributes.push(A::read(u16::from_ne_bytes([kind_low, kind_high]) & !HOW, value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(attributes)
}

/// Four bytes of a header, which is long enough.
pub(crate) fn number(header: &[u8], at: usize) -> u32 {
    header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

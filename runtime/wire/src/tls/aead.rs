//! Encrypts and decrypts records with AES-GCM and ChaCha20-Poly1305, in the formats of TLS 1.2 and 1.3.

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, KeyBlockShape, MessageDecrypter,
    MessageEncrypter, NONCE_LEN, Nonce, OutboundOpaqueMessage, OutboundPlainMessage, PrefixedPayload,
    Tls12AeadAlgorithm, Tls13AeadAlgorithm, UnsupportedOperationError, make_tls12_aad, make_tls13_aad,
};
use rustls::{ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion};

#[cfg(test)]
mod rfc8448;
#[cfg(test)]
mod tests;

/// Size of a tag in bytes, for all ciphers.
pub(super) const TAG: usize = 16;

/// The part of a nonce that GCM sends along in TLS 1.2 (RFC 5288).
const EXPLICIT: usize = 8;

/// The largest record that may become plain text.
const RECORD: usize = 16 * 1024;

/// A cipher without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aead {
    /// AES with 128 bits in GCM.
    Aes128Gcm,
    /// AES with 256 bits in GCM.
    Aes256Gcm,
    /// ChaCha20 and Poly1305.
    ChaCha20Poly1305,
}

impl Aead {
    fn key_len(self) -> usize {
        match self {
            Aead::Aes128Gcm => 16,
            Aead::Aes256Gcm | Aead::ChaCha20Poly1305 => 32,
        }
    }

    /// Whether TLS 1.2 sends a part of its nonces along.
    fn is_explicit(self) -> bool {
        match self {
            Aead::Aes128Gcm | Aead::Aes256Gcm => true,
            Aead::ChaCha20Poly1305 => false,
        }
    }

    /// The cipher with a key of its length.
    pub(super) fn keyed(self, key: &[u8]) -> Keyed {
        let wrong = "callers make keys of the cipher's length";
        match self {
            Aead::Aes128Gcm => Keyed::Aes128Gcm(Box::new(Aes128Gcm::new_from_slice(key).expect(wrong))),
            Aead::Aes256Gcm => Keyed::Aes256Gcm(Box::new(Aes256Gcm::new_from_slice(key).expect(wrong))),
            Aead::ChaCha20Poly1305 => {
                Keyed::ChaCha20Poly1305(ChaCha20Poly1305::new_from_slice(key).expect(wrong))
            }
        }
    }

    fn secrets(self, key: AeadKey, iv: Iv) -> ConnectionTrafficSecrets {
        match self {
            Aead::Aes128Gcm => ConnectionTrafficSecrets::Aes128Gcm { key, iv },
            Aead::Aes256Gcm => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
            Aead::ChaCha20Poly1305 => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
        }
    }
}

/// A cipher with its key.
pub(super) enum Keyed {
    Aes128Gcm(Box<Aes128Gcm>),
    Aes256Gcm(Box<Aes256Gcm>),
    ChaCha20Poly1305(ChaCha20Poly1305),
}

impl Keyed {
    pub(super) fn seal(
        &self,
        nonce: [u8; NONCE_LEN],
        aad: &[u8],
        text: &mut [u8],
    ) -> Result<[u8; TAG], Error> {
        let text = InOutBuf::from(text);
        let nonce = &nonce.into();
        let tag = match self {
            Keyed::Aes128Gcm(cipher) => cipher.encrypt_inout_detached(nonce, aad, text),
            Keyed::Aes256Gcm(cipher) => cipher.encrypt_inout_detached(nonce, aad, text),
            Keyed::ChaCha20Poly1305(cipher) => cipher.encrypt_inout_detached(nonce, aad, text),
        };
        tag.map(Into::into).map_err(|_| Error::EncryptError)
    }

    /// Decrypts `sealed`, whose tag is at its end, in place. Returns the length of the plain text.
    pub(super) fn open(&self, nonce: [u8; NONCE_LEN], aad: &[u8], sealed: &mut [u8]) -> Result<usize, Error> {
        let (text, tag) = sealed.split_last_chunk_mut::<TAG>().ok_or(Error::DecryptError)?;
        let length = text.len();
        let text = InOutBuf::from(text);
        let (nonce, tag) = (&nonce.into(), &(*tag).into());
        let opened = match self {
            Keyed::Aes128Gcm(cipher) => cipher.decrypt_inout_detached(nonce, aad, text, tag),
            Keyed::Aes256Gcm(cipher) => cipher.decrypt_inout_detached(nonce, aad, text, tag),
            Keyed::ChaCha20Poly1305(cipher) => cipher.decrypt_inout_detached(nonce, aad, text, tag),
        };
        opened.map(|()| length).map_err(|_| Error::DecryptError)
    }
}

impl Tls13AeadAlgorithm for Aead {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        Box::new(Tls13 { keyed: self.keyed(key.as_ref()), iv })
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        Box::new(Tls13 { keyed: self.keyed(key.as_ref()), iv })
    }

    fn key_len(&self) -> usize {
        Aead::key_len(*self)
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: Iv,
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Ok(self.secrets(key, iv))
    }
}

/// One direction of a connection of TLS 1.3.
struct Tls13 {
    keyed: Keyed,
    iv: Iv,
}

impl MessageEncrypter for Tls13 {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        sequence: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let length = self.encrypted_payload_len(message.payload.len());
        let mut payload = PrefixedPayload::with_capacity(length);
        payload.extend_from_chunks(&message.payload);
        payload.extend_from_slice(&[message.typ.into()]);
        let nonce = Nonce::new(&self.iv, sequence).0;
        let tag = self.keyed.seal(nonce, &make_tls13_aad(length), payload.as_mut())?;
        payload.extend_from_slice(&tag);
        Ok(OutboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, payload))
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        length + 1 + TAG
    }
}

impl MessageDecrypter for Tls13 {
    fn decrypt<'a>(
        &mut self,
        mut message: InboundOpaqueMessage<'a>,
        sequence: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let nonce = Nonce::new(&self.iv, sequence).0;
        let aad = make_tls13_aad(message.payload.len());
        let length = self.keyed.open(nonce, &aad, &mut message.payload)?;
        message.payload.truncate(length);
        message.into_tls13_unpadded_message()
    }
}

impl Tls12AeadAlgorithm for Aead {
    fn encrypter(&self, key: AeadKey, iv: &[u8], extra: &[u8]) -> Box<dyn MessageEncrypter> {
        Box::new(Tls12 {
            keyed: self.keyed(key.as_ref()),
            iv: whole_iv(iv, extra),
            explicit: self.is_explicit(),
        })
    }

    fn decrypter(&self, key: AeadKey, iv: &[u8]) -> Box<dyn MessageDecrypter> {
        let extra = if self.is_explicit() { &[0; EXPLICIT][..] } else { &[] };
        Box::new(Tls12 {
            keyed: self.keyed(key.as_ref()),
            iv: whole_iv(iv, extra),
            explicit: self.is_explicit(),
        })
    }

    fn key_block_shape(&self) -> KeyBlockShape {
        let explicit_nonce_len = if self.is_explicit() { EXPLICIT } else { 0 };
        KeyBlockShape {
            enc_key_len: Aead::key_len(*self),
            fixed_iv_len: NONCE_LEN - explicit_nonce_len,
            explicit_nonce_len,
        }
    }

    fn extract_keys(
        &self,
        key: AeadKey,
        iv: &[u8],
        explicit: &[u8],
    ) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Ok(self.secrets(key, Iv::new(whole_iv(iv, explicit))))
    }
}

/// One direction of a connection of TLS 1.2.
struct Tls12 {
    keyed: Keyed,
    iv: [u8; NONCE_LEN],
    explicit: bool,
}

impl MessageEncrypter for Tls12 {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        sequence: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let mut payload = PrefixedPayload::with_capacity(self.encrypted_payload_len(message.payload.len()));
        let nonce = Nonce::new(&Iv::new(self.iv), sequence).0;
        let sent = if self.explicit { &nonce[NONCE_LEN - EXPLICIT..] } else { &[] };
        payload.extend_from_slice(sent);
        payload.extend_from_chunks(&message.payload);
        let aad = make_tls12_aad(sequence, message.typ, message.version, message.payload.len());
        let tag = self.keyed.seal(nonce, &aad, &mut payload.as_mut()[sent.len()..])?;
        payload.extend_from_slice(&tag);
        Ok(OutboundOpaqueMessage::new(message.typ, message.version, payload))
    }

    fn encrypted_payload_len(&self, length: usize) -> usize {
        length + TAG + if self.explicit { EXPLICIT } else { 0 }
    }
}

impl MessageDecrypter for Tls12 {
    fn decrypt<'a>(
        &mut self,
        mut message: InboundOpaqueMessage<'a>,
        sequence: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let sent = if self.explicit { EXPLICIT } else { 0 };
        let length = message.payload.len().checked_sub(sent + TAG).ok_or(Error::DecryptError)?;
        if length > RECORD {
            return Err(Error::PeerSentOversizedRecord);
        }
        let nonce = if self.explicit {
            let mut nonce = self.iv;
            nonce[NONCE_LEN - EXPLICIT..].copy_from_slice(&message.payload[..EXPLICIT]);
            nonce
        } else {
            Nonce::new(&Iv::new(self.iv), sequence).0
        };
        let aad = make_tls12_aad(sequence, message.typ, message.version, length);
        self.keyed.open(nonce, &aad, &mut message.payload[sent..])?;
        Ok(message.into_plain_message_range(sent..sent + length))
    }
}

/// Joins the fixed part of an IV and the rest.
fn whole_iv(fixed: &[u8], rest: &[u8]) -> [u8; NONCE_LEN] {
    let mut iv = [0; NONCE_LEN];
    iv[..fixed.len()].copy_from_slice(fixed);
    iv[fixed.len()..fixed.len() + rest.len()].copy_from_slice(rest);
    iv
}

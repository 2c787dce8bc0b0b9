//! The simple 1-RTT handshake of RFC 8448, section 3: from the shared secret of X25519 to the
//! records of both sides, with TLS_AES_128_GCM_SHA256 of our provider. The expected bytes are
//! the RFC's; the order of the steps is RFC 8446's (section 7.1), spelled out here once more.

use rustls::ContentType;
use rustls::crypto::tls13::HkdfExpander;

use super::super::{TLS13_AES_128, hex};
use super::tests::{Direction, Record};
use super::{Aead, Iv};

const CLIENT_HELLO: &str = "
    010000c00303cb34ecb1e78163ba1c38c6dacb196a6dffa21a8d9912ec18a2ef6283024dece7000006130113031302
    010000910000000b0009000006736572766572ff01000100000a00140012001d001700180019010001010102010301
    0400230000003300260024001d002099381de560e4bd43d23d8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c
    002b0003020304000d0020001e040305030603020308040805080604010501060102010402050206020202002d0002
    0101001c00024001";

const SERVER_HELLO: &str = "
    020000560303a6af06a4121860dc5e6e60249cd34c95930c8ac5cb1434dac155772ed3e2692800130100002e003300
    24001d0020c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f002b00020304";

/// Encrypted extensions, certificate, its signature and Finished, in one record.
const SERVER_FLIGHT: &str = "
    17030302a2
    d1ff334a56f5bff6594a07cc87b580233f500f45e489e7f33af35edf7869fcf40aa40aa2b8ea73f848a7ca07612ef9
    f945cb960b4068905123ea78b111b429ba9191cd05d2a389280f526134aadc7fc78c4b729df828b5ecf7b13bd9aefb
    0e57f271585b8ea9bb355c7c79020716cfb9b1183ef3ab20e37d57a6b9d7477609aee6e122a4cf51427325250c7d0e
    509289444c9b3a648f1d71035d2ed65b0e3cdd0cbae8bf2d0b227812cbb360987255cc744110c453baa4fcd610928d
    809810e4b7ed1a8fd991f06aa6248204797e36a6a73b70a2559c09ead686945ba246ab66e5edd8044b4c6de3fcf2a8
    9441ac66272fd8fb330ef8190579b3684596c960bd596eea520a56a8d650f563aad27409960dca63d3e688611ea5e2
    2f4415cf9538d51a200c27034272968a264ed6540c84838d89f72c24461aad6d26f59ecaba9acbbb317b66d902f4f2
    92a36ac1b639c637ce343117b659622245317b49eeda0c6258f100d7d961ffb138647e92ea330faeea6dfa31c7a84d
    c3bd7e1b7a6c7178af36879018e3f252107f243d243dc7339d5684c8b0378bf30244da8c87c843f5e56eb4c5e8280a
    2b48052cf93b16499a66db7cca71e4599426f7d461e66f99882bd89fc50800becca62d6c74116dbd2972fda1fa80f8
    5df881edbe5a37668936b335583b599186dc5c6918a396fa48a181d6b6fa4f9d62d513afbb992f2b992f67f8afe67f
    76913fa388cb5630c8ca01e0c65d11c66a1e2ac4c85977b7c7a6999bbf10dc35ae69f5515614636c0b9b68c19ed2e3
    1c0b3b66763038ebba42f3b38edc0399f3a9f23faa63978c317fc9fa66a73f60f0504de93b5b845e275592c12335ee
    340bbc4fddd502784016e4b3be7ef04dda49f4b440a30cb5d2af939828fd4ae3794e44f94df5a631ede42c1719bfda
    bf0253fe5175be898e750edc53370d2b";

const CLIENT_FINISHED: &str = "
    1703030035
    75ec4dc238cce60b298044a71e219c56cc77b0517fe9b93c7a4bfc44d87f38f80338ac98fc46deb384bd1caeacab68
    67d726c40546";

/// The first record of the client's data: the bytes from 0 to 49.
const CLIENT_DATA: &str = "
    1703030043
    a23f7054b62c94d0affafe8228ba55cbefacea42f914aa66bcab3f2b9819a8a5b46b395bd54a9a20441e2b62974e1f
    5a6292a2977014bd1e3deae63aeebb21694915e4";

/// The client's close_notify, its second record.
const CLIENT_ALERT: &str = "1703030013c9872760655666b74d7ff1153efd6db6d0b0e3";

/// The second record of the server under its application keys, after a ticket.
const SERVER_DATA: &str = "
    1703030043
    2e937e11ef4ac740e538ad36005fc4a46932fc3225d05f82aa1b36e30efaf97d90e6dffc602dcb501a59a8fcc49c4b
    f2e5f0a21c0047c2abf332540dd032e167c2955d";

const SERVER_ALERT: &str = "1703030013b58fd67166ebf599d24720cfbe7efa7a8864a9";

/// `HKDF-Expand-Label` of RFC 8446.
fn expand_label(secret: &dyn HkdfExpander, label: &str, context: &[u8], length: usize) -> Vec<u8> {
    let mut output = vec![0; length];
    let label = format!("tls13 {label}");
    let info: [&[u8]; 5] = [
        &(length as u16).to_be_bytes(),
        &[label.len() as u8],
        label.as_bytes(),
        &[context.len() as u8],
        context,
    ];
    secret.expand_slice(&info, &mut output).expect("a short output");
    output
}

fn expander(secret: &[u8]) -> Box<dyn HkdfExpander> {
    TLS13_AES_128.hkdf_provider.expander_for_okm(&okm(secret))
}

fn okm(secret: &[u8]) -> rustls::crypto::tls13::OkmBlock {
    rustls::crypto::tls13::OkmBlock::new(secret)
}

fn hash(messages: &[u8]) -> Vec<u8> {
    TLS13_AES_128.common.hash_provider.hash(messages).as_ref().to_vec()
}

/// The keys of one direction. `key` and `iv` are what the RFC expects.
fn direction(secret: &[u8], key: &str, iv: &str) -> Direction {
    let expander = expander(secret);
    let (derived_key, derived_iv) =
        (expand_label(&*expander, "key", b"", 16), expand_label(&*expander, "iv", b"", 12));
    assert_eq!(derived_key, hex(key));
    assert_eq!(derived_iv, hex(iv));
    let iv = Iv::copy(&derived_iv);
    Direction::tls13(Aead::Aes128Gcm, &derived_key, iv)
}

/// The `verify_data` of a Finished after the handshake messages in `transcript`.
fn verify_data(secret: &[u8], transcript: &[u8]) -> Vec<u8> {
    let key = expand_label(&*expander(secret), "finished", b"", 32);
    TLS13_AES_128.hkdf_provider.hmac_sign(&okm(&key), &hash(transcript)).as_ref().to_vec()
}

/// Both ways: the record opens to `text`, and sealing `text` gives the record.
fn is_record(direction: &mut Direction, sequence: u64, record: &str, kind: ContentType, text: &[u8]) {
    let record = Record::parse(&hex(record));
    assert_eq!(direction.open(&record, sequence), Ok((kind, text.to_vec())));
    assert_eq!(direction.seal(kind, text, sequence), record);
}

#[test]
fn the_simple_handshake_of_rfc_8448_has_its_secrets_and_records() {
    let hkdf = TLS13_AES_128.hkdf_provider;
    let (client_hello, server_hello) = (hex(CLIENT_HELLO), hex(SERVER_HELLO));
    assert_eq!((client_hello.len(), server_hello.len()), (196, 90));

    let early = hkdf.extract_from_zero_ikm(None);
    let derived = expand_label(&*early, "derived", &hash(b""), 32);
    assert_eq!(derived, hex("6f2615a108c702c5678f54fc9dbab69716c076189c48250cebeac3576c3611ba"));

    // `exchange/tests.rs` computes this secret from the keys of both.
    let shared = hex("8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d");
    let handshake = hkdf.extract_from_secret(Some(&derived), &shared);
    let mut transcript = [client_hello, server_hello].concat();
    let hellos = hash(&transcript);
    assert_eq!(hellos, hex("860c06edc07858ee8e78f0e7428c58edd6b43f2ca3e6e95f02ed063cf0e1cad8"));
    let client_secret = expand_label(&*handshake, "c hs traffic", &hellos, 32);
    let server_secret = expand_label(&*handshake, "s hs traffic", &hellos, 32);
    assert_eq!(client_secret, hex("b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21"));
    assert_eq!(server_secret, hex("b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38"));
    let derived = expand_label(&*handshake, "derived", &hash(b""), 32);
    assert_eq!(derived, hex("43de77e0c77713859a944db9db2590b53190a65b3ee2e4f12dd7a0bb7ce254b4"));
    let main = hkdf.extract_from_zero_ikm(Some(&derived));

    let mut server =
        direction(&server_secret, "3fce516009c21727d0f2e4e86ee403bc", "5d313eb2671276ee13000b30");
    let record = Record::parse(&hex(SERVER_FLIGHT));
    let (kind, flight) = server.open(&record, 0).expect("a record of the server");
    assert_eq!((kind, flight.len()), (ContentType::Handshake, 657));
    assert_eq!(server.seal(kind, &flight, 0), record);
    let (before, finished) = flight.split_at(657 - 36);
    transcript.extend_from_slice(before);
    let verify = verify_data(&server_secret, &transcript);
    assert_eq!(verify, hex("9b9b141d906337fbd2cbdce71df4deda4ab42c309572cb7fffee5454b78f0718"));
    assert_eq!(finished, [&hex("14000020"), &verify[..]].concat());
    transcript.extend_from_slice(finished);

    let verify = verify_data(&client_secret, &transcript);
    assert_eq!(verify, hex("a8ec436d677634ae525ac1fcebe11a039ec17694fac6e98527b642f2edd5ce61"));
    let mut client =
        direction(&client_secret, "dbfaa693d1762c5b666af5d950258d01", "5bd3c71b836e0b76bb73265f");
    let finished = [&hex("14000020"), &verify[..]].concat();
    is_record(&mut client, 0, CLIENT_FINISHED, ContentType::Handshake, &finished);

    let all = hash(&transcript);
    assert_eq!(all, hex("9608102a0f1ccc6db6250b7b7e417b1a000eaada3daae4777a7686c9ff83df13"));
    let client_secret = expand_label(&*main, "c ap traffic", &all, 32);
    let server_secret = expand_label(&*main, "s ap traffic", &all, 32);
    assert_eq!(client_secret, hex("9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5"));
    assert_eq!(server_secret, hex("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643"));
    let mut client =
        direction(&client_secret, "17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9");
    let mut server =
        direction(&server_secret, "9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984");
    let data: Vec<u8> = (0..50).collect();
    is_record(&mut client, 0, CLIENT_DATA, ContentType::ApplicationData, &data);
    is_record(&mut client, 1, CLIENT_ALERT, ContentType::Alert, &[1, 0]);
    is_record(&mut server, 1, SERVER_DATA, ContentType::ApplicationData, &data);
    is_record(&mut server, 2, SERVER_ALERT, ContentType::Alert, &[1, 0]);
}

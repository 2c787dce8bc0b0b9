use super::*;

/// What kubectl 1.36 sends for two connections to port 8080: `error` and `data` of each.
const KUBECTL: &str = "\
    800300010000003e0000000100000000000078f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45e0\
    1c60616061c0c0c0c0590489c64c50f2663400000000ffff800300010000001c00000003000000000000826ac61445350e543225a29b0600\
    0000ffff800300010000001400000005000000000000a2c4624300000000ffff800300010000001700000007000000000000c2aa19973568\
    7a01000000ffff";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn frames(pieces: &[&[u8]]) -> Result<Vec<Frame>, SpdyError> {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for piece in pieces {
        decoder.push(piece);
        while let Some(frame) = decoder.frame()? {
            frames.push(frame);
        }
    }
    Ok(frames)
}

fn opened(stream: u32, kind: &str, request: &str, fin: bool) -> Frame {
    let mut headers: Vec<(String, String)> = [("port", "8080"), ("requestid", request), ("streamtype", kind)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    headers.sort();
    Frame::Open { stream, headers, fin }
}

fn sorted(mut frames: Vec<Frame>) -> Vec<Frame> {
    for frame in &mut frames {
        if let Frame::Open { headers, .. } = frame {
            headers.sort();
        }
    }
    frames
}

#[test]
fn the_streams_of_kubectl_are_read_in_pieces_of_any_size() {
    let all = bytes(KUBECTL);
    let expected = || {
        [(1, "error", "0"), (3, "data", "0"), (5, "error", "1"), (7, "data", "1")]
            .map(|(stream, kind, request)| opened(stream, kind, request, false))
            .into_iter()
            .collect::<Vec<_>>()
    };
    for size in [1, 7, 64, all.len()] {
        let pieces: Vec<&[u8]> = all.chunks(size).collect();
        assert_eq!(frames(&pieces).map(sorted), Ok(expected()), "in pieces of {size}");
    }
}

#[test]
fn spdy_frames_round_trip() {
    let mut encoder = Encoder::default();
    let all = [
        encoder.open(1, &[("streamtype", "error"), ("port", "8080"), ("requestid", "0")], true),
        encoder.open(3, &[("streamtype", "data"), ("port", "8080"), ("requestid", "0")], false),
        data(3, b"hello", false),
        data(3, b"", true),
        pong(7),
    ];
    let expected = vec![
        opened(1, "error", "0", true),
        opened(3, "data", "0", false),
        Frame::Data { stream: 3, bytes: b"hello".to_vec(), fin: false },
        Frame::Data { stream: 3, bytes: Vec::new(), fin: true },
        Frame::Ping { id: 7 },
    ];
    assert_eq!(frames(&[&all.concat()]).map(sorted), Ok(expected));
    assert_eq!(frames(&[&refuse(5)]), Ok(vec![Frame::Reset { stream: 5 }]));
    // As Go writes them in `SYN_REPLY`: nothing but a block without pairs.
    let reply = Encoder::default().reply(1);
    assert_eq!(
        reply,
        bytes(&"80030002 00000018 00000001 7820e3c6a7c2 00 0400 fbff 00000000 00 0000 ffff".replace(' ', ""))
    );
}

#[test]
fn headers_beyond_the_compression_window_are_read() {
    let (mut encoder, mut all) = (Encoder::default(), Vec::new());
    let value = "x".repeat(5000);
    for stream in 0..20 {
        all.extend(encoder.open(2 * stream + 1, &[("port", &value)], false));
    }
    let frames = frames(&[&all]).unwrap();
    assert!(
        frames.len() == 20
            && frames
                .iter()
                .all(|frame| matches!(frame, Frame::Open { headers, .. } if headers[0].1 == value))
    );
}

#[test]
fn malformed_spdy_frames_are_rejected() {
    for (hex, error) in [
        ("8002000100000000", SpdyError::Version),
        ("ffff000100000000", SpdyError::Version),
        ("80030001000fffff", SpdyError::Length),
        ("8003000100000004 00000001", SpdyError::Length),
        ("8003000600000002 0000", SpdyError::Length),
        ("8003000100000010 00000001 000000000000 789c00000000", SpdyError::Headers),
        ("8003000100000010 00000001 000000000000 782000000000", SpdyError::Headers),
        // An end of the stream; a block that is stored and lies about its length; too few pairs.
        ("8003000100000015 00000001 000000000000 7820e3c6a7c2 01 0000 ffff", SpdyError::Headers),
        ("8003000100000015 00000001 000000000000 7820e3c6a7c2 00 0400 0000", SpdyError::Headers),
        ("8003000100000019 00000001 000000000000 7820e3c6a7c2 00 0400 fbff 00000001", SpdyError::Headers),
        (
            "800300010000001d 00000001 000000000000 7820e3c6a7c2 00 0800 f7ff 00000001 ffffffff",
            SpdyError::Headers,
        ),
    ] {
        assert_eq!(frames(&[&bytes(&hex.replace(' ', ""))]), Err(error), "{hex}");
    }
}

#[test]
fn a_decompression_bomb_in_headers_is_rejected_before_it_is_unpacked() {
    // A repeated byte: the longest match, 258 bytes a few bits, in blocks of fixed codes.
    let mut packed = bytes("7820e3c6a7c2");
    let mut writer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut writer, &vec![0; 1 << 20]).unwrap();
    std::io::Write::flush(&mut writer).unwrap();
    packed.extend(writer.get_ref());
    let mut body = vec![0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    body.extend(packed);
    assert_eq!(frames(&[&control(1, 0, &body)]), Err(SpdyError::Length));
}

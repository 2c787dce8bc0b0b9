//! The answers to clients, which report to the places how far each client has read.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use hyper::body::{Bytes, Frame, SizeHint};

use super::body::Body;
use super::place::{Held, Place};

/// Bytes that the connection gets at a time: it asks for more when these are on their way.
const PIECE: usize = 16 * 1024;

/// The answer to a client, piece by piece, so that it is seen how far the client has read.
pub(super) struct Answer {
    body: Body,
    place: Rc<Place>,
    held: Option<Held>,
}

impl Answer {
    pub(super) fn new(body: Body, place: Rc<Place>, held: Option<Held>) -> Answer {
        Answer { body, place, held }
    }
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let answer = self.get_mut();
        let piece = match &mut answer.body {
            Body::Whole(whole) => {
                let piece = whole.as_mut().map(|bytes| bytes.split_to(bytes.len().min(PIECE)));
                if whole.as_ref().is_none_or(Bytes::is_empty) {
                    *whole = None;
                    answer.held = None;
                }
                Poll::Ready(piece)
            }
            Body::Stream(pieces) => pieces.as_mut().poll_next(context),
        };
        // The connection asks for the next piece at once, unless the client reads nothing.
        match &piece {
            Poll::Ready(Some(_)) => answer.place.mark_unread(),
            Poll::Ready(None) | Poll::Pending => answer.place.mark_served(),
        }
        piece.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.body, Body::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Body::Stream(_) => SizeHint::default(),
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.place.mark_silent();
    }
}

//! How the state of a supervisor is saved for its next binary: descriptors and PIDs stay, so that their numbers are enough.
//!
//! For `#[serde(with = "saved")]`.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::unistd::Pid;
use nodlet_core::sorted::SortedMap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::sys::inherited;

/// What is saved in another form. The supervisor's state has each descriptor once: see [`inherited`].
pub(super) trait Saved {
    type Form: Serialize + DeserializeOwned;

    fn save(&self) -> Self::Form;
    fn restore(form: Self::Form) -> Self;
}

impl Saved for OwnedFd {
    type Form = RawFd;

    fn save(&self) -> RawFd {
        self.as_raw_fd()
    }

    fn restore(number: RawFd) -> OwnedFd {
        inherited(number)
    }
}

impl Saved for Pid {
    type Form = i32;

    fn save(&self) -> i32 {
        self.as_raw()
    }

    fn restore(number: i32) -> Pid {
        Pid::from_raw(number)
    }
}

impl<T: Saved> Saved for Option<T> {
    type Form = Option<T::Form>;

    fn save(&self) -> Self::Form {
        self.as_ref().map(T::save)
    }

    fn restore(form: Self::Form) -> Self {
        form.map(T::restore)
    }
}

impl<T: Saved> Saved for Vec<T> {
    type Form = Vec<T::Form>;

    fn save(&self) -> Self::Form {
        self.iter().map(T::save).collect()
    }

    fn restore(form: Self::Form) -> Self {
        form.into_iter().map(T::restore).collect()
    }
}

impl<T: Saved> Saved for SortedMap<String, T> {
    type Form = SortedMap<String, T::Form>;

    fn save(&self) -> Self::Form {
        self.iter().map(|(name, value)| (name.clone(), value.save())).collect()
    }

    fn restore(form: Self::Form) -> Self {
        form.into_iter().map(|(name, form)| (name, T::restore(form))).collect()
    }
}

pub(super) fn serialize<T: Saved, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.save().serialize(to)
}

pub(super) fn deserialize<'de, T: Saved, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::Form::deserialize(from).map(T::restore)
}

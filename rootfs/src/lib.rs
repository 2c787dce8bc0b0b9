//! Image to root file system; knows nothing of pods.

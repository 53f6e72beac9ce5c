"""Sound: recorded speech out of packages, tones that are made here, and spectrograms of both.

A signal is float32 in [-1, 1] at 16,000 samples a second unless a function says otherwise.
"""

from __future__ import annotations

import wave

import numpy as np
import numpy.typing as npt

from zoo import fetch

RATE = 16_000
Array = npt.NDArray[np.float32]


def recording(name: str) -> Array:
    """A recording of the table, mixed to one channel and brought to `RATE`."""
    with wave.open(str(fetch.path(name))) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        raw = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    signal = raw.reshape(-1, channels).mean(axis=1) / 32768
    return _resampled(signal, rate).astype(np.float32)


def _resampled(signal: npt.NDArray[np.float64], rate: int) -> npt.NDArray[np.float64]:
    """Cut the spectrum and turn it back: a band limit without ripple for whole recordings."""
    if rate == RATE:
        return signal
    num_out = round(len(signal) * RATE / rate)
    spectrum = np.fft.rfft(signal)
    kept = num_out // 2 + 1
    spectrum = spectrum[:kept] if kept <= len(spectrum) else np.pad(spectrum, (0, kept))[:kept]
    return np.fft.irfft(spectrum, num_out) * (num_out / len(signal))


def tone(frequency_hz: float, num_samples: int, rate: int = RATE, harmonics: int = 5) -> Array:
    """A note with overtones that fall off, each weaker than the last."""
    time = np.arange(num_samples) / rate
    parts = [np.sin(2 * np.pi * frequency_hz * k * time) / k for k in range(1, harmonics + 1)]
    signal: npt.NDArray[np.float64] = 0.3 * np.sum(parts, axis=0)
    return signal.astype(np.float32)


def windows(signal: Array, size: int = 512, context: int = 64) -> Array:
    """Consecutive windows, each with the end of the one before: [n, context + size]."""
    count = len(signal) // size
    padded = np.concatenate([np.zeros(context, np.float32), signal[: count * size]])
    return np.stack([padded[i * size : i * size + size + context] for i in range(count)])


def bands(signal: Array, num_bands: int, num_frames: int, hop: int = 160) -> Array:
    """Log energies of a spectrogram, mean 0 and deviation 1: [num_bands, num_frames].

    No net here was trained on exactly these bands; they have the look of what it was trained on.
    """
    size = 400
    needed = hop * (num_frames - 1) + size
    signal = np.tile(signal, -(-needed // len(signal)))[:needed]
    frames = np.lib.stride_tricks.sliding_window_view(signal, size)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(size), 512)) ** 2
    edges = np.unique(np.geomspace(2, 256, num_bands + 1).astype(int))
    edges = np.linspace(1, 256, num_bands + 1).astype(int) if len(edges) <= num_bands else edges
    energy = np.add.reduceat(power, edges[:-1], axis=1)
    log: npt.NDArray[np.float64] = np.log(energy + 1e-8).T
    even: npt.NDArray[np.float64] = (log - log.mean()) / log.std()
    return even.astype(np.float32)

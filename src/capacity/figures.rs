//! How fast devices, links and stores are taken to be. What the table has is from the makers' data sheets, with the share of
//! it that is taken to be reached; what is asked of a device is counted by the model's own settings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use millstream_actors::cost::Coefficients;
use millstream_actors::disk::DiskCost;
use millstream_actors::rank::predicted::{Predict, RowCost};
use millstream_kernels::work::{RowShape, Work, WorkFacts};
use millstream_runtime::SimLink;
use serde::Deserialize;

/// Disks that a cache has: they share what the tier can do.
const DISKS: f64 = 4.0;

/// A device as its maker describes it.
struct Maker {
    name: &'static str,
    /// Products of BF16 or F16 numbers, without sparsity: floating-point operations a second.
    flops: f64,
    /// Of its memory.
    bytes_per_second: f64,
    /// Where that is said.
    source: &'static str,
}

const MAKERS: [Maker; 6] = [
    Maker {
        name: "a100",
        flops: 312e12,
        bytes_per_second: 2.039e12,
        source: "NVIDIA A100 80GB SXM data sheet",
    },
    Maker { name: "h100", flops: 989e12, bytes_per_second: 3.35e12, source: "NVIDIA H100 SXM data sheet" },
    Maker { name: "h200", flops: 989e12, bytes_per_second: 4.8e12, source: "NVIDIA H200 SXM data sheet" },
    Maker { name: "h20", flops: 148e12, bytes_per_second: 4.0e12, source: "NVIDIA H20 data sheet" },
    Maker { name: "b200", flops: 2_250e12, bytes_per_second: 8.0e12, source: "NVIDIA HGX B200 data sheet" },
    Maker {
        name: "mi300x",
        flops: 1_307e12,
        bytes_per_second: 5.3e12,
        source: "AMD Instinct MI300X data sheet",
    },
];

/// Figures of everything that takes time. A file may say any part of it, as JSON; what it does not say is as here.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Figures {
    /// What computes.
    pub device: Device,
    /// From one group to another.
    pub handover: Link,
    /// From host memory to a group.
    pub host: Link,
    /// A disk of the machine.
    pub disk: Store,
    /// A store that many machines reach.
    pub shared: Store,
    /// Of a device for an hour.
    pub price: Option<f64>,
    /// What steps take, in place of the device, and where that is from; devices of a group share it evenly.
    pub coefficients: Option<Coefficients>,
    /// See there.
    #[serde(skip)]
    pub source: String,
}

/// What computes steps.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Device {
    /// Its name, for people.
    pub name: String,
    /// Floating-point operations a second at most.
    pub flops: f64,
    /// Bytes of its memory a second at most.
    pub bytes_per_second: f64,
    /// The share of `flops` that is reached.
    pub flops_share: f64,
    /// The share of `bytes_per_second` that is reached.
    pub bytes_share: f64,
    /// What every step takes beside that.
    pub step_us: f64,
    /// Bytes of a weight; what the model's files have, where it is not said.
    pub weight_bytes: Option<f64>,
}

/// A link between memories.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Link {
    /// What a message takes beside its bytes.
    pub latency_us: f64,
    /// What one sender may send.
    pub bytes_per_second: f64,
}

/// Where blocks last.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// What a read or a write takes beside its bytes.
    pub latency_us: f64,
    /// Read by one process.
    pub bytes_per_second: f64,
    /// Written by one process.
    pub written_per_second: f64,
}

impl Default for Figures {
    /// An H100; 400 Gbit/s between groups, a PCIe 5 x16 slot's 64 GB/s to host memory, a fast NVMe drive, and a store behind
    /// 200 Gbit/s.
    fn default() -> Self {
        let link = |latency_us, bytes_per_second| Link { latency_us, bytes_per_second };
        let store = |latency_us, bytes_per_second, written_per_second| Store {
            latency_us,
            bytes_per_second,
            written_per_second,
        };
        Self {
            device: Device::default(),
            handover: link(20.0, 50e9),
            host: link(5.0, 55e9),
            disk: store(100.0, 12e9, 6e9),
            shared: store(1_000.0, 25e9, 12e9),
            price: None,
            coefficients: None,
            source: String::new(),
        }
    }
}

impl Default for Device {
    fn default() -> Self {
        Self::of("h100").unwrap_or_else(|| unreachable!("the table has it"))
    }
}

impl Default for Link {
    fn default() -> Self {
        Figures::default().handover
    }
}

impl Default for Store {
    fn default() -> Self {
        Figures::default().disk
    }
}

impl Device {
    /// A device of the table: half of its operations and four fifths of its bytes are reached, and a step takes half a
    /// millisecond beside.
    pub fn of(name: &str) -> Option<Self> {
        let maker = MAKERS.iter().find(|maker| maker.name == name)?;
        Some(Self {
            name: format!("{} ({})", maker.name, maker.source),
            flops: maker.flops,
            bytes_per_second: maker.bytes_per_second,
            flops_share: 0.5,
            bytes_share: 0.8,
            step_us: 500.0,
            weight_bytes: None,
        })
    }

    /// What a group of so many of them takes, which share the work evenly. Bytes are read once; products of the first few
    /// tokens are done while weights come, and those of more take their time beside that.
    pub fn coefficients(&self, ranks: usize) -> Coefficients {
        let ranks = ranks.max(1) as f64;
        let product = 2e9 / (self.flops * self.flops_share * ranks);
        let byte = 1e9 / (self.bytes_per_second * self.bytes_share * ranks);
        // Settings alone say two bytes a weight.
        let weights = byte * self.weight_bytes.map_or(1.0, |bytes| bytes / 2.0);
        Coefficients {
            step: self.step_us / 1e6,
            row: 0.0,
            token: 0.0,
            gemm_few: 0.0,
            gemm: product,
            pairs: product,
            scores: product,
            head: product,
            weights,
            kv: byte,
            longest: 0.0,
        }
    }

    /// Names in the table.
    pub fn names() -> Vec<&'static str> {
        MAKERS.iter().map(|maker| maker.name).collect()
    }
}

impl Figures {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or says what is not known or cannot be.
    pub fn read(file: &Path) -> anyhow::Result<Self> {
        let place = file.display();
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {place}"))?;
        let figures: Self =
            serde_json::from_str(&text).with_context(|| format!("{place} is no file of figures"))?;
        figures.check().map_err(|why| anyhow::anyhow!("{place}: {why}"))?;
        Ok(figures)
    }

    fn check(&self) -> Result<(), String> {
        let Device { flops, bytes_per_second, flops_share, bytes_share, step_us, .. } = self.device;
        let speeds = [
            ("device.flops", flops),
            ("device.bytes_per_second", bytes_per_second),
            ("device.flops_share", flops_share),
            ("device.bytes_share", bytes_share),
            ("handover.bytes_per_second", self.handover.bytes_per_second),
            ("host.bytes_per_second", self.host.bytes_per_second),
            ("disk.bytes_per_second", self.disk.bytes_per_second),
            ("disk.written_per_second", self.disk.written_per_second),
            ("shared.bytes_per_second", self.shared.bytes_per_second),
            ("shared.written_per_second", self.shared.written_per_second),
        ];
        let times = [
            ("device.step_us", step_us),
            ("handover.latency_us", self.handover.latency_us),
            ("host.latency_us", self.host.latency_us),
            ("disk.latency_us", self.disk.latency_us),
            ("shared.latency_us", self.shared.latency_us),
        ];
        let slow = speeds.iter().find(|(_, speed)| !(speed.is_finite() && *speed > 0.0));
        let long = times.iter().find(|(_, time)| !(0.0..=1e9).contains(time));
        match (slow, long) {
            (Some((name, _)), _) => Err(format!("{name} must be above 0")),
            (_, Some((name, _))) => Err(format!("{name} must be from 0 to 1e9")),
            (None, None) => Ok(()),
        }
    }

    /// What messages between seats take.
    pub fn links(&self) -> Vec<SimLink> {
        let link = |lanes: &str, link: Link| SimLink {
            lanes: lanes.to_owned(),
            latency: micros(link.latency_us),
            bytes_per_second: link.bytes_per_second,
        };
        vec![link(".blocks.", self.handover), link("cache.answers.", self.host)]
    }

    /// What a disk of a tier of this kind takes.
    pub fn disk(&self, kind: Option<&str>) -> DiskCost {
        let store = if kind == Some("shared") { self.shared } else { self.disk };
        let byte = |speed: f64| DISKS * 1e9 / speed;
        DiskCost {
            wish: micros(store.latency_us),
            byte: byte(store.bytes_per_second),
            written: byte(store.written_per_second),
        }
    }

    /// What steps of a group of so many devices take.
    pub fn predict(&self, facts: &WorkFacts, ranks: usize) -> Arc<dyn Predict> {
        let coefficients = self
            .coefficients
            .map_or_else(|| self.device.coefficients(ranks), |given| given.scaled(1.0 / ranks.max(1) as f64));
        Arc::new(Priced { facts: facts.clone(), coefficients })
    }

    /// In sentences.
    pub fn assumptions(&self) -> Vec<String> {
        let Device { name, flops_share, bytes_share, step_us, .. } = &self.device;
        let device = format!(
            "devices: {name}, {:.0} % of their operations and {:.0} % of their bytes reached, {step_us} µs a step beside",
            100.0 * flops_share,
            100.0 * bytes_share
        );
        let speed = |speed: f64| format!("{:.1} GB/s", speed / 1e9);
        vec![
            self.coefficients.map_or(device, |_| format!("steps: coefficients {}", self.source)),
            format!(
                "links: {} and {} µs between groups, {} and {} µs from host memory",
                speed(self.handover.bytes_per_second),
                self.handover.latency_us,
                speed(self.host.bytes_per_second),
                self.host.latency_us
            ),
        ]
    }
}

fn micros(time: f64) -> Duration {
    Duration::from_nanos((time * 1e3) as u64)
}

/// Steps at a price for all they ask.
struct Priced {
    facts: WorkFacts,
    coefficients: Coefficients,
}

impl Predict for Priced {
    fn step(&self, rows: &[RowCost]) -> Duration {
        let work: Work = rows.iter().map(|row| self.facts.row(&shape(row))).sum();
        self.coefficients.time(&work)
    }

    fn coefficients(&self) -> Coefficients {
        self.coefficients
    }
}

/// A row as the arithmetic counts it.
pub fn shape(row: &RowCost) -> RowShape {
    RowShape {
        start: row.start,
        tokens: row.tokens,
        logits: u32::from(row.chooses),
        valid_from: row.valid_from,
        written: row.written,
        decoder_from: row.decoder_from,
    }
}

//! From a file and what it names to a report.

use super::assumptions::assumptions;
use super::demand::{DAY, Demand, Hits};
use super::even::{Both, Cheaper, changes};
use super::group::Hardware;
use super::keep::{Keep, named};
use super::model::Model;
use super::report::{Beside, Income, Kept, Line, Money, Report, Row, Table};
use super::search::{Found, Question, SHARES};
use super::spec::{Figure, Spec, Written};
use super::text::{count, money, span};
use crate::capacity::figures::Device;

/// Choices that are shown behind the cheapest.
const OTHERS: usize = 6;

/// A file, checked, and what it names.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The file.
    pub spec: Spec,
    /// The fields that it has.
    pub written: Written,
    /// What is asked.
    pub demand: Demand,
    /// What answers, where the file says it.
    pub model: Option<Model>,
}

/// Searches, where there is something to search, and counts the money.
pub fn plan(setting: &Setting) -> Report {
    let spec = &setting.spec;
    let device = device(spec);
    let mut report = empty(setting, &device);
    if let (Some(model), Some(goal)) = (&setting.model, &spec.goal) {
        let of = Hardware { model, device: &device, spec: &spec.device };
        let question = Question { of, demand: &setting.demand, goal, search: &spec.search };
        question.fill(spec, &mut report);
    }
    let devices = match (&spec.fleet, &report.best) {
        (Some(fleet), _) => Some((fleet.hosts * f64::from(spec.device.host_devices), 0.0, None)),
        (None, Some(best)) => Some((best.devices, best.held_a_day, Some(best.found))),
        (None, None) => None,
    };
    report.money = devices.map(|devices| day(setting, devices));
    report.published = spec.published.iter().map(|of| beside(of, setting, &report)).collect();
    report
}

/// The device, with what the file says of it.
fn device(spec: &Spec) -> Device {
    let of = &spec.device;
    let base = of.name.as_deref().and_then(Device::of).unwrap_or_default();
    Device {
        name: of.name.as_ref().map_or_else(|| "as the file says".to_owned(), |_| base.name.clone()),
        flops: of.flops.unwrap_or(base.flops),
        bytes_per_second: of.bytes_per_second.unwrap_or(base.bytes_per_second),
        flops_share: of.flops_share.unwrap_or(base.flops_share),
        bytes_share: of.bytes_share.unwrap_or(base.bytes_share),
        step_us: of.step_us.unwrap_or(base.step_us),
        weight_bytes: None,
    }
}

fn empty(setting: &Setting, device: &Device) -> Report {
    let searched = setting.model.is_some();
    Report {
        title: setting.spec.title.clone(),
        demand: asked(&setting.demand),
        tried: 0,
        best: None,
        others: Vec::new(),
        why_none: Vec::new(),
        parting: Vec::new(),
        table: None,
        kept: Vec::new(),
        money: None,
        published: Vec::new(),
        method: if searched { method(setting) } else { Vec::new() },
        assumptions: assumptions(setting, device),
    }
}

fn asked(demand: &Demand) -> Vec<String> {
    let mut lines = vec![format!(
        "a day: {} tokens of prompts, {} of answers",
        count(demand.input_a_day),
        count(demand.output_a_day)
    )];
    if demand.prompt > 0.0 {
        lines.push(format!(
            "{} requests a second in the mean, {} in the busiest hour; {} and {} tokens each",
            count(demand.rate()),
            count(demand.busiest()),
            count(demand.prompt),
            count(demand.answer)
        ));
    }
    lines
}

impl<'a> Question<'a> {
    fn tokens(&self) -> f64 {
        self.demand.input_a_day + self.demand.output_a_day
    }

    /// What a tier keeps for each time of the list, and nothing.
    fn keeps(&self, spec: &'a Spec) -> Vec<Keep<'a>> {
        let times = &self.search.retention;
        let of = |tier| times.iter().map(move |kept| Keep::new(tier, kept.0, self.demand));
        named(&spec.tiers).into_iter().flat_map(of).chain([Keep::NOTHING]).collect()
    }

    fn fill(&self, spec: &'a Spec, report: &mut Report) {
        let keeps = self.keeps(spec);
        let found = self.search(&keeps);
        report.tried = found.tried;
        let line = |choice| Line::new(choice, self.tokens(), self.goal.between_tokens_ms);
        let mut lines: Vec<Line> = found.choices.iter().map(line).collect();
        let mut seen = std::collections::BTreeSet::new();
        lines.retain(|line| seen.insert((line.shape.clone(), line.keeps())));
        lines.truncate(1 + OTHERS);
        let Some(best) = found.choices.first() else {
            report.why_none = self.why_none(&found);
            return;
        };
        report.parting = self.parting(&found, best.keep);
        report.kept = keeps.iter().filter_map(|keep| self.kept(keep)).collect();
        report.table = best.keep.tier.or_else(|| named(&spec.tiers).pop()).map(|tier| self.table(tier));
        report.best = Some(lines.remove(0));
        report.others = lines;
    }

    fn why_none(&self, found: &Found<'_>) -> Vec<String> {
        let (first, between) = found.least_ms;
        let none = |least: f64| match least.is_finite() {
            true => format!("the least that some group of these sizes takes is {least:.1} ms"),
            false => "no group of these sizes has memory for the weights and one sequence".to_owned(),
        };
        let mut why = vec![format!("none of {} choices reaches the goal", found.tried)];
        if first.is_finite() && first > self.goal.first_token_ms || !between.is_finite() {
            why.push(format!("first token within {} ms: {}", self.goal.first_token_ms, none(first)));
        }
        if between > self.goal.between_tokens_ms {
            why.push(format!("{} ms between tokens: {}", self.goal.between_tokens_ms, none(between)));
        }
        if why.len() == 1 {
            why.push(
                "each part is possible alone: a tier has too little room or is read too slowly".to_owned(),
            );
        }
        why
    }

    /// What a tier would keep for a time, and the cheapest choice with it.
    fn kept(&self, keep: &Keep<'a>) -> Option<Kept> {
        let (tier, _) = keep.tier?;
        let prompt = self.of.model.prompt(self.demand.prompt, keep.found * self.demand.prompt);
        let held = keep.held(self.demand, self.of.model, prompt.fetched);
        let best = self.search(&[*keep]).choices.into_iter().next();
        Some(Kept {
            tier: tier.to_owned(),
            kept_s: keep.kept_s,
            found: keep.found,
            held_bytes: held.bytes,
            read_per_second: held.read,
            written_per_second: held.written,
            held_a_day: 24.0 * held.hour,
            devices: best.as_ref().map(|best| best.devices),
            million_tokens: best.map(|best| 24e6 * best.hour / self.tokens()),
        })
    }

    fn table(&self, tier: (&'static str, &'a super::spec::TierSpec)) -> Table {
        let times: Vec<f64> = self.search.retention.iter().map(|kept| kept.0).collect();
        let row = |hit_share: f64| {
            let demand = Demand { hits: Hits::Always(hit_share), ..self.demand.clone() };
            let question = Question { demand: &demand, ..*self };
            let cost = |kept: &f64| {
                let best = question.search(&[Keep::new(tier, *kept, &demand)]).choices.into_iter().next();
                best.map(|best| 24e6 * best.hour / self.tokens())
            };
            Row { hit_share, million_tokens: times.iter().map(cost).collect() }
        };
        Table { tier: tier.0.to_owned(), rows: SHARES.map(row).into(), kept_s: times }
    }

    /// When groups should not be apart.
    fn parting(&self, found: &Found<'_>, keep: Keep<'a>) -> Vec<String> {
        let tokens = self.tokens();
        let each = |hour: Option<f64>| {
            hour.map_or_else(|| "not possible".to_owned(), |hour| money(24e6 * hour / tokens))
        };
        let both = Both::of(&found.choices);
        let verdict = match both.cheaper() {
            Cheaper::Joined => {
                "do not disaggregate: groups that do both are as cheap or cheaper at this goal"
            }
            _ => "disaggregate: groups of their own for prompts and answers are cheaper at this goal",
        };
        let mut lines = vec![format!(
            "{verdict} (a million tokens: {} apart, {} joined)",
            each(both.split),
            each(both.joined)
        )];
        let who = |cheaper| match cheaper {
            Cheaper::Joined => "joined",
            Cheaper::Split => "apart",
            Cheaper::Neither => "neither",
        };
        let demand = self.by_demand(keep);
        let pace = self.by_pace(keep);
        for (line, unit) in [(&demand, "requests a day"), (&pace, "ms between tokens")] {
            let (Some(first), Some(last)) = (line.first(), line.last()) else { continue };
            let changes = changes(line);
            let until = |(before, after, _): &(f64, f64, Cheaper)| count((before * after).sqrt());
            let from = std::iter::once(first.1).chain(changes.iter().map(|change| change.2));
            let mut runs: Vec<String> = from.map(|cheaper| who(cheaper).to_owned()).collect();
            runs.iter_mut()
                .zip(&changes)
                .for_each(|(run, at)| *run += &format!(" up to about {}", until(at)));
            lines.push(format!(
                "cheaper by {unit}, all else as it is, from {} to {}: {}",
                count(first.0),
                count(last.0),
                runs.join(", then ")
            ));
        }
        if lines.iter().any(|line| line.matches("then").count() > 1) {
            lines.push("it goes to and fro where groups are few, since they are whole".to_owned());
        }
        lines
    }
}

/// Money of a day of so many devices, of what is kept, and of what clients pay for the share that is found.
fn day(setting: &Setting, (devices, held, found): (f64, f64, Option<f64>)) -> Money {
    let Setting { spec, demand, .. } = setting;
    let device_hours = devices * 24.0;
    let cost = device_hours * spec.device.hour + held;
    let found = found.unwrap_or_else(|| demand.hits.share(f64::MAX));
    let income = spec.prices.map(|prices| {
        let hits = demand.input_a_day * found / 1e6 * prices.hit;
        let misses = demand.input_a_day * (1.0 - found) / 1e6 * prices.miss;
        let answers = demand.output_a_day / 1e6 * prices.output;
        let revenue = hits + misses + answers;
        Income { revenue, hits, misses, answers, margin_percent: 100.0 * (revenue - cost) / cost }
    });
    Money {
        device_hours,
        cost,
        million_tokens: cost * 1e6 / (demand.input_a_day + demand.output_a_day),
        million_answer_tokens: cost * 1e6 / demand.output_a_day,
        income,
    }
}

/// A figure that others say, beside what comes out here.
fn beside(of: &super::spec::Published, setting: &Setting, report: &Report) -> Beside {
    let money = report.money.as_ref();
    let income = money.and_then(|money| money.income.as_ref());
    let kept = of.kept.map(|kept| kept.0);
    let held = || {
        let (model, kept) = (setting.model.as_ref()?, kept?);
        let tier = named(&setting.spec.tiers).pop()?;
        let keep = Keep::new(tier, kept, &setting.demand);
        let prompt = model.prompt(setting.demand.prompt, keep.found * setting.demand.prompt);
        Some(keep.held(&setting.demand, model, prompt.fetched))
    };
    let (name, computed) = match of.figure {
        Figure::Devices => ("devices", money.map(|money| money.device_hours / 24.0)),
        Figure::CostADay => ("cost of a day", money.map(|money| money.cost)),
        Figure::RevenueADay => ("revenue of a day", income.map(|income| income.revenue)),
        Figure::MarginPercent => ("margin, percent", income.map(|income| income.margin_percent)),
        Figure::StoreBytes => ("bytes kept", held().map(|held| held.bytes)),
        Figure::StoreReadPerSecond => ("bytes read a second", held().map(|held| held.read)),
        Figure::KvBytesPerToken => {
            ("bytes of keys and values a token", setting.model.as_ref().map(|model| model.kv_bytes))
        }
    };
    let name = kept.map_or_else(|| name.to_owned(), |kept| format!("{name}, kept for {}", span(kept)));
    let ratio = computed.map(|computed| computed / of.value);
    let rest = held().filter(|_| of.figure == Figure::StoreBytes).and_then(|held| {
        let far = ratio.is_some_and(|ratio| !(0.9..=1.1).contains(&ratio));
        let times = of.value / held.bytes;
        let days = of.value / held.written / DAY;
        far.then(|| {
            format!(
                "these inputs do not explain the difference: it would take {times:.2} times as many copies, or blocks that are \
                 there for {days:.1} days"
            )
        })
    });
    Beside { name, value: of.value, computed, ratio, rest, source: of.source.clone() }
}

/// How it is counted.
fn method(setting: &Setting) -> Vec<String> {
    let mut lines: Vec<String> = [
        "time of a step: what all its rows multiply, over the device's operations a second that are reached, and the bytes it \
         reads, over its bytes a second that are reached, one after the other, and the time of a step beside; the first eight \
         tokens are multiplied while weights come (the cost model that `simulate` has for a device)",
        "between layers: a token goes to its experts in 1 byte a number and comes back in 2, or, without experts, the group \
         sums twice a layer in a ring; nothing is hidden behind products",
        "experts are chosen evenly and independently; what no token of a step chose is not read",
        "wait for a prefill group: M/G/c by Sakasegawa (1977) with the factor (1 + cv²)/2 of Allen and Cunneen; who waits does so \
         for an exponential time; to it come half of the step under way, the fetch, and the prompt's own steps",
        "groups that give answers have room for as many sequences as run in the mean (Little's law) and 2.326 standard deviations \
         more (a Poisson number: M/G/∞), at the pace of a full group",
        "joined groups: each step takes what the pace allows; rows of answers first, tokens of prompts in what is left of it",
        "bytes kept: what is written a second, times the time from first to last use, and after it (Little's law), or as counted in \
         the trace; all answers and all prompt tokens that were not found are written once",
        "what is not in a tier is not found; a host's own tier is asked like one that all share, as if each request went where its \
         blocks are",
        "devices are paid for all hours of a day, at the busiest hour's number",
        "not counted: hosts and networks beside the price of devices, drafting itself, failures, images, uneven experts",
    ]
    .map(str::to_owned)
    .into();
    if let Hits::Always(_) = setting.demand.hits {
        lines.push("hit_share is taken to hold for whatever time blocks are kept".to_owned());
    }
    lines.extend(setting.model.iter().flat_map(Model::says));
    lines
}

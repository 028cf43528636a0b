//! Which experts compute a token: from what the router says of them to a few with weights. Plain loops, a token at a time:
//! the choice is a discontinuity, so it must come out the same on every device.

use crate::experts::Routing;

/// How experts are chosen.
pub(super) struct Choice {
    /// Experts of a token.
    pub per_token: usize,
    pub rule: Rule,
}

/// What becomes of the router's numbers.
pub(super) enum Rule {
    /// Softmax over all; the best are chosen.
    Softmax {
        /// Their weights are scaled to sum to one.
        normalised: bool,
    },
    /// The best are chosen; softmax over them.
    SoftmaxOfChosen,
    /// A sigmoid of each, and a choice within groups.
    Grouped(Grouped),
    /// The root of a softplus of each.
    Lifted(Lifted),
}

/// The choice of DeepSeek-V4.1: a bias has a say in who is chosen, another one for tokens of images.
pub(super) struct Lifted {
    /// Added to each expert for the choice.
    pub bias: Vec<f32>,
    /// The same for marked tokens.
    pub bias_marked: Vec<f32>,
    /// Sum of the weights.
    pub scale: f32,
}

/// The choice of DeepSeek-V3: a bias has a say in who is chosen, none in the weights.
pub(super) struct Grouped {
    /// Added to each expert for the choice.
    pub bias: Vec<f32>,
    /// Groups of consecutive experts.
    pub groups: usize,
    /// The best of them, by the sum of their two best experts, are chosen from.
    pub groups_used: usize,
    /// The weights are scaled to sum to one before `scale`.
    pub normalised: bool,
    /// Factor of the weights.
    pub scale: f32,
}

/// Memory for the choice of one token.
#[derive(Default)]
pub(super) struct Picker {
    /// What each expert is worth.
    worth: Vec<f32>,
    /// Candidates, best first.
    order: Vec<u32>,
    /// Groups, best first.
    groups: Vec<u32>,
    /// What each group is worth.
    sums: Vec<f32>,
}

impl Picker {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        (self.worth.capacity() + self.sums.capacity()) * size_of::<f32>()
            + (self.order.capacity() + self.groups.capacity()) * size_of::<u32>()
    }
}

impl Choice {
    /// Chooses for one token after the other; `logits [tokens, experts]` becomes scores. Tokens may be `marked`; if the list
    /// is too short, the others are not.
    pub fn route(
        &self,
        (logits, experts): (&mut [f32], usize),
        marked: &[bool],
        picker: &mut Picker,
        routing: &mut Routing,
    ) {
        routing.clear();
        let marked = marked.iter().copied().chain(std::iter::repeat(false));
        for (scores, marked) in logits.chunks_exact_mut(experts).zip(marked) {
            let factor = self.choose(scores, picker, marked);
            let chosen = &picker.order[..self.per_token];
            routing.push(chosen.iter().map(|&expert| (expert, scores[expert as usize] * factor)));
        }
        routing.arrange();
    }

    /// Makes scores of logits and puts the best experts first; gives the factor that makes weights of their scores.
    fn choose(&self, scores: &mut [f32], picker: &mut Picker, marked: bool) -> f32 {
        let Picker { worth, order, .. } = picker;
        order.clear();
        worth.clear();
        match &self.rule {
            Rule::Softmax { .. } | Rule::SoftmaxOfChosen => {
                order.extend(0..scores.len() as u32);
                worth.extend_from_slice(scores);
            }
            Rule::Grouped(grouped) => {
                scores.iter_mut().for_each(|score| *score = 1.0 / (1.0 + (-*score).exp()));
                worth.extend(scores.iter().zip(&grouped.bias).map(|(score, bias)| score + bias));
                grouped.candidates(picker);
            }
            Rule::Lifted(lifted) => {
                order.extend(0..scores.len() as u32);
                scores.iter_mut().for_each(|score| *score = root_softplus(*score));
                let bias = if marked { &lifted.bias_marked } else { &lifted.bias };
                worth.extend(scores.iter().zip(bias).map(|(score, bias)| score + bias));
            }
        }
        let Picker { worth, order, .. } = picker;
        best_first(order, worth, self.per_token);
        let chosen = order[..self.per_token].iter().map(|&expert| expert as usize);
        let (normalised, scale) = match &self.rule {
            Rule::Softmax { normalised } => {
                softmax(scores, 0..worth.len());
                (*normalised, 1.0)
            }
            Rule::SoftmaxOfChosen => {
                softmax(scores, chosen.clone());
                (false, 1.0)
            }
            Rule::Grouped(grouped) => (grouped.normalised, grouped.scale),
            Rule::Lifted(lifted) => {
                let total: f32 = chosen.map(|expert| scores[expert]).sum();
                return lifted.scale / total.max(1e-20);
            }
        };
        if normalised { scale / chosen.map(|expert| scores[expert]).sum::<f32>() } else { scale }
    }
}

impl Grouped {
    /// The experts of the best groups.
    fn candidates(&self, picker: &mut Picker) {
        let Picker { worth, order, groups, sums } = picker;
        let size = worth.len() / self.groups;
        let best_two = |group: &[f32]| {
            let pair = |(first, second): (f32, f32), &value: &f32| {
                if value > first { (value, first) } else { (first, second.max(value)) }
            };
            let (first, second) = group.iter().fold((f32::NEG_INFINITY, f32::NEG_INFINITY), pair);
            first + second
        };
        groups.clear();
        groups.extend(0..self.groups as u32);
        if self.groups_used < self.groups {
            sums.clear();
            sums.extend(worth.chunks_exact(size).map(best_two));
            best_first(groups, sums, self.groups_used);
        }
        let within = |&group: &u32| (group * size as u32)..(group + 1) * size as u32;
        order.extend(groups[..self.groups_used].iter().flat_map(within));
    }
}

/// Puts the first `count` by worth in front, the largest first, equals by number.
fn best_first(order: &mut [u32], worth: &[f32], count: usize) {
    let better = |a: &u32, b: &u32| worth[*b as usize].total_cmp(&worth[*a as usize]).then(a.cmp(b));
    if count < order.len() {
        order.select_nth_unstable_by(count, better);
    }
    let count = count.min(order.len());
    order[..count].sort_unstable_by(better);
}

/// `sqrt(ln(1 + exp(x)))`.
fn root_softplus(x: f32) -> f32 {
    (x.max(0.0) + (-x.abs()).exp().ln_1p()).sqrt()
}

/// Softmax over the scores at `places`; the others stay.
fn softmax(scores: &mut [f32], places: impl Iterator<Item = usize> + Clone) {
    let max = places.clone().map(|place| scores[place]).fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for place in places.clone() {
        scores[place] = (scores[place] - max).exp();
        total += scores[place];
    }
    places.for_each(|place| scores[place] /= total);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The experts and weights of one token.
    fn chosen(choice: &Choice, logits: &[f32]) -> Vec<(u32, f32)> {
        chosen_as(choice, logits, false)
    }

    fn chosen_as(choice: &Choice, logits: &[f32], marked: bool) -> Vec<(u32, f32)> {
        let mut picker = Picker::default();
        let mut logits = logits.to_vec();
        let factor = choice.choose(&mut logits, &mut picker, marked);
        let chosen = picker.order[..choice.per_token].iter();
        chosen.map(|&expert| (expert, (logits[expert as usize] * factor * 1e4).round() / 1e4)).collect()
    }

    #[test]
    fn each_rule_weighs_as_it_says() {
        let logits = [1.0_f32.ln(), 5.0_f32.ln(), 2.0_f32.ln(), 2.0_f32.ln()];
        let of = |rule| chosen(&Choice { per_token: 2, rule }, &logits);
        assert_eq!(of(Rule::Softmax { normalised: false }), [(1, 0.5), (2, 0.2)]);
        assert_eq!(of(Rule::Softmax { normalised: true }), [(1, 0.7143), (2, 0.2857)]);
        assert_eq!(of(Rule::SoftmaxOfChosen), [(1, 0.7143), (2, 0.2857)]);
    }

    #[test]
    fn groups_are_chosen_by_their_two_best_and_bias_has_no_weight() {
        // Sigmoids of 1/2 (odd), 1/4 (even); the bias lifts the last group and expert 5 in it.
        let logits = [-(3.0_f32.ln()), 0.0, -(3.0_f32.ln()), 0.0, -(3.0_f32.ln()), 0.0];
        let bias = vec![0.0, 0.0, 0.0, 0.1, 0.9, 0.0];
        let grouped = Grouped { bias, groups: 3, groups_used: 1, normalised: true, scale: 3.0 };
        let choice = Choice { per_token: 2, rule: Rule::Grouped(grouped) };
        assert_eq!(chosen(&choice, &logits), [(4, 1.0), (5, 2.0)]);
    }

    #[test]
    fn marked_tokens_are_lifted_otherwise() {
        // Roots of softplus: 1, 2, 0 and about 10.
        let logits = [(1.0_f32.exp() - 1.0).ln(), (4.0_f32.exp() - 1.0).ln(), -200.0, 100.0];
        let (bias, bias_marked) = (vec![0.0, 0.0, 0.0, -20.0], vec![0.0, -3.0, 20.0, -20.0]);
        let rule = Rule::Lifted(Lifted { bias, bias_marked, scale: 1.5 });
        let choice = Choice { per_token: 2, rule };
        assert_eq!(chosen_as(&choice, &logits, false), [(1, 1.0), (0, 0.5)]);
        assert_eq!(chosen_as(&choice, &logits, true), [(2, 0.0), (0, 1.5)]);
    }

    #[test]
    fn what_is_no_number_is_chosen_all_the_same() {
        let choice = Choice { per_token: 2, rule: Rule::Softmax { normalised: true } };
        assert_eq!(chosen(&choice, &[f32::NAN; 3]).len(), 2);
    }
}

//! Why a candidate was chosen, in a sentence.

use super::bound::Bound;
use super::chosen::Outlook;
use super::machine::Machine;
use super::planner::PlanRequest;

/// The sentence; it follows "because".
pub(crate) fn reason(
    machine: &Machine,
    request: &PlanRequest,
    all: &[Outlook],
    chosen: usize,
    bound: &Bound,
) -> String {
    let it = &all[chosen];
    if !request.limits.algorithms.is_empty()
        && request.limits.algorithms.iter().any(|name| name == it.algorithm)
    {
        return format!("the choice is limited to {}", request.limits.algorithms.join(", "));
    }
    let percent = |o: &Outlook| 100.0 * o.fraction_of_bound;
    let others =
        all.iter().enumerate().filter(|&(at, o)| at != chosen && o.algorithm != it.algorithm).map(|(_, o)| o);
    let next = others.min_by(|a, b| a.predicted_us.total_cmp(&b.predicted_us));
    let compared = next.map_or(String::new(), |o| {
        format!("; next comes {} with {:.1} us against {:.1} us", o.name, o.predicted_us, it.predicted_us)
    });
    // Where the bound is far away the number of steps decides.
    if it.fraction_of_bound < 0.5 {
        let steps = match it.algorithm {
            "one_shot" => "it takes one step, and at this size steps cost more than bytes",
            "direct" => {
                "every byte takes one hop to where it is needed, and at this size hops cost more than bytes"
            }
            _ => "at this size the cost of its hops and the load on its links are in balance",
        };
        return format!("{steps}{compared}");
    }
    match it.algorithm {
        "forest" => format!(
            "{}; {} trees load each link as much as it can carry and reach {:.1} GB/s, {:.0}% of what is possible",
            ring_limit(machine, request, bound),
            it.channels,
            it.algbw_gbs,
            percent(it)
        ),
        "ring" => format!(
            "rings of neighbours load the links evenly and reach {:.1} GB/s, {:.0}% of what is possible{compared}",
            it.algbw_gbs,
            percent(it)
        ),
        _ => format!(
            "any two ranks have a way of their own, so one hop for each byte reaches {:.1} GB/s, {:.0}% of what is \
             possible{compared}",
            it.algbw_gbs,
            percent(it)
        ),
    }
}

/// What keeps rings back on this machine.
fn ring_limit(machine: &Machine, request: &PlanRequest, bound: &Bound) -> String {
    let [rings, single] = machine.rings();
    let Some(ring) = single.rings.first() else {
        return "no ring visits every GPU without passing one twice".into();
    };
    let width = |hops: &[usize]| {
        hops.windows(2).map(|step| machine.graph.capacity(step[0], step[1])).min().unwrap_or(0)
    };
    let at = (0..ring.order.len()).min_by_key(|&at| width(&ring.hops[at])).unwrap_or(0);
    let (from, to) = (ring.order[at], ring.order[(at + 1) % ring.order.len()]);
    // All_reduce, all_gather and reduce_scatter by their bus bandwidth; a pipeline of a broadcast moves what a ring does.
    let algbw = rings.busbw() as f64 / 1e3 / request.collective.bus_factor(machine.ranks());
    format!(
        "a ring would cross {} between {} and {} at {:.0} GB/s, and all rings together reach no more than {:.1} GB/s of \
         the {:.1} GB/s that are possible",
        machine.hops_type(from, to, &ring.hops[at]),
        machine.graph.name(from),
        machine.graph.name(to),
        width(&ring.hops[at]) as f64 / 1e3,
        algbw,
        bound.algbw.to_f64() / 1e3
    )
}

// Runs the simulations and makes the record of their figures.
import type { Topic } from '../../scripts/docs/performance.ts'
import { checks } from './checks.ts'
import type { Cost, Costs } from './costs.ts'
import {
  dayRows,
  doublings,
  fewestReplicas,
  fixedParts,
  growth,
  needRows,
  placements,
  sensitivity,
  trainings,
} from './experiments.ts'
import { digits, outcome, percent, policyNames, type Say, servedCells, time, whole } from './figures.ts'
import { basesOf, dedicatedReplicas, type Target } from './plan.ts'
import type { Policy } from './serving.ts'

export function topicOf(plan: Target, costs: Costs, list: Cost[], date: string, say: Say): Topic {
  const command = 'npm run bench -- capacity'
  const run = { machine: 'any', date, command }
  const bases = basesOf(plan, costs)
  const gpus = bases.reduce((sum, { replicas }) => sum + replicas, 0)
  say(`${gpus} GPUs for ${plan.bases} bases: ${bases.map(({ replicas }) => replicas).join(', ')}`)
  const placed = placements(bases, plan, costs, say)
  const [today, now] = [placed.get('least loaded')!, placed.get('affinity')!]
  const dedicated = dedicatedReplicas(bases, plan, costs, 300)
  const training = trainings(plan, costs)
  const weakest = fixedParts(plan, costs).toSorted((a, b) => b.load / b.capacity - a.load / a.capacity)[0]!
  const fewest = (policy: Policy) => fewestReplicas(bases[0]!, policy, plan, costs)
  const days = dayRows(plan, costs, say)
  return {
    title: 'Capacity',
    about: [
      `What ${whole(plan.adapters)} adapters on ${plan.bases} bases, ${whole(plan.jobs_a_day)} jobs a day and ` +
        `${whole(plan.requests)} requests a second need: computed, and simulated on a virtual clock ` +
        '(`bench/capacity`) with the service’s own choice of a replica, waiting list and autoscaler. Costs are ours ' +
        'where we have measured them. Those of vLLM on a GPU are published figures of others and marked as assumed: ' +
        'no GPU ran for this page. The same seed gives the same figures.',
      'What the simulation found:',
      [
        '- **Adapters do not share GPUs on Ray.** A deployment there has vLLM replicas of its own. This load keeps ' +
          `${whole(dedicated.awake)} of ${whole(plan.adapters)} adapters awake, which takes ` +
          `${whole(dedicated.replicas)} GPUs where shared replicas take ${gpus}. Many adapters belong on vLLM ` +
          'servers that share a base ([upstreams](upstreams.md)).',
        '- **The fewest requests are a bad choice where adapters share.** It sent every adapter to every replica, so ' +
          `that each loaded all the time: ${outcome(today)}. Now an adapter has replicas that it belongs to ` +
          `([decision 053](decisions/053-affinity-of-adapters.md)): ${outcome(now)}, on the same ${gpus} GPUs.`,
        `- **Beside GPUs, what breaks first** is ${weakest.name}, at ` +
          `${digits(weakest.capacity / weakest.load, 1)} times this load.`,
      ].join('\n'),
    ],
    records: [
      {
        claim: `requests whose adapter has a slot in the replica's GPU, ${gpus} GPUs`,
        figure: percent(now.hit_rate, 1),
        peer: `${percent(today.hit_rate, 1)} with the fewest requests alone`,
        ...run,
      },
      {
        claim: `time to first token, p95, ${gpus} GPUs`,
        figure: time(now.first_token.p95),
        peer: `${time(today.first_token.p95)} with the fewest requests alone`,
        ...run,
      },
      {
        claim: `GPUs for the largest base (${whole(bases[0]!.rate)} requests a second) at a first token p95 of 0.5 s`,
        figure: whole(fewest('affinity')),
        peer: `${whole(fewest('least loaded'))} with the fewest requests alone`,
        ...run,
      },
    ],
    breakdowns: [
      {
        title: 'What the load needs',
        head: ['for', 'how much', 'why'],
        rows: needRows(plan, costs, bases, training),
        ...run,
      },
      {
        title: `Placement of adapters, all bases, ${gpus} GPUs with ${costs.slots} slots each`,
        head: ['rule', 'answered/s', 'slot hits', 'loads/s', 'in queue p50, p95', 'first token p50, p95, p99'],
        rows: [...placed].map(([policy, result]) => [policyNames[policy], ...servedCells(result, plan)]),
        ...run,
      },
      {
        title:
          'What breaks first as the load doubles: share of each part that is used; GPUs and server processes are added',
        head: ['load', 'GPUs', 'server processes', ...fixedParts(plan, costs).map(({ name }) => name)],
        rows: doublings(plan, costs),
        ...run,
      },
      {
        title: `The largest base with its ${bases[0]!.replicas} GPUs as load grows and nothing is added`,
        head: ['load', 'rule', 'answered/s', 'slot hits', 'loads/s', 'in queue p50, p95', 'first token p50, p95, p99'],
        rows: growth(bases[0]!, plan, costs, say),
        ...run,
      },
      {
        title: 'What the assumptions change, on the largest base',
        head: [
          'changed',
          'rule',
          'answered/s',
          'slot hits',
          'loads/s',
          'in queue p50, p95',
          'first token p50, p95, p99',
        ],
        rows: sensitivity(bases[0]!, plan, costs, say),
        ...run,
      },
      {
        title: 'The autoscaler beside Ray Serve’s rule, the largest base, same targets and delays',
        head: ['load', 'rule', 'GPU-seconds', 'wait mean, p95, p99', 'changes', 'most GPUs'],
        rows: days,
        ...run,
      },
      {
        title: 'Simulated beside closed forms',
        head: ['what', 'formula', 'simulated', 'formula gives', 'difference'],
        rows: checks(plan, costs, bases),
        ...run,
      },
      {
        title: 'Costs',
        head: ['what', 'value', 'kind', 'source'],
        rows: list.map(({ name, value, unit, measured, source }) => [
          name,
          `${value.toLocaleString('en-US')} ${unit}`.trim(),
          measured ? 'measured' : 'assumed',
          source,
        ]),
        ...run,
      },
    ],
    bounds: [
      'A replica is simulated step by step by vLLM’s own rules for batches and slots, but its speed is a line ' +
        'through two published points. Prefix caches, prompts of different lengths, preemption for want of KV cache, ' +
        'and networks are left out; clients send whatever the answers.',
      'Loading holds up the whole batch, as in vLLM today. Where it runs beside the batch, which vLLM and SGLang ' +
        'work on, the difference between the rules shrinks: see the rows with shorter loads.',
      'Where a rule is overloaded, slot hits are those of the requests that were answered, and waits grow for as ' +
        'long as it lasts: the figures are of 20 s.',
      `Requests come at random at ${plan.gateways} server processes, each of which sees its own requests alone.`,
    ],
  }
}

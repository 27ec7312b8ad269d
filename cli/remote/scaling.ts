// `deployments scale` and `deployments scaling`: how many replicas a name has.
import type { Scaling } from '../../sdk/index.ts'
import { UsageError } from '../support/errors.ts'
import { typed } from '../support/invocation.ts'
import { type GlobalOptions, type Program, runs, wholeNumber } from '../support/options.ts'
import { show } from '../support/output.ts'
import { connect } from '../support/service.ts'
import { clean, fields, time } from '../support/text.ts'

interface ScaleOptions extends GlobalOptions {
  min?: number
  max?: number
  requests?: number
  utilization?: number
  upCooldown?: string
  downCooldown?: string
  on?: string
  off?: boolean
}

/** Adds the commands to the group `deployments`. */
export function addScalingCommands(group: Program): void {
  runs(
    group
      .command('scale')
      .description('give a name dedicated replicas, as many as its load takes')
      .argument('<deployment>', 'the name')
      .option('--min <replicas>', 'replicas at least; 0: none while nobody asks (1 at first)', wholeNumber('--min', 0))
      .option('--max <replicas>', 'replicas at most', wholeNumber('--max', 1))
      .option(
        '--requests <number>',
        'requests that a replica should have at a time (8 at first)',
        wholeNumber('--requests', 1),
      )
      .option(
        '--utilization <percent>',
        'of its GPU or cores; 0: only requests count',
        wholeNumber('--utilization', 0, 100),
      )
      .option('--up-cooldown <duration>', 'least time between scale-ups, such as 30s')
      .option('--down-cooldown <duration>', 'least time before a scale-down, such as 5m')
      .option(
        '--on <class>',
        'what a replica runs on: cpu, the class of a GPU, or ray (ray:KIND of GPU) for a Ray cluster',
      )
      .option('--off', 'let the engine of the machine serve it again'),
    scale,
  )
  runs(
    group
      .command('scaling')
      .description('the replicas of a name, and each decision')
      .argument('<deployment>', 'the name'),
    async (name: string, options: GlobalOptions) => {
      const scaling = await connect(options).tunery.deployments.scaling.get(name)
      show(options, scaling, () => describe(scaling))
    },
  )
}

async function scale(name: string, options: ScaleOptions): Promise<void> {
  const { min, max, requests, utilization, upCooldown, downCooldown, on, off } = options
  const { scaling: api } = connect(options).tunery.deployments
  if (off) {
    if ([min, max, requests, utilization, upCooldown, downCooldown, on].some((setting) => setting !== undefined))
      throw new UsageError('--off stands alone.')
    return show(options, await api.remove(name), `${name} is served by the engine of the machine again.`)
  }
  // What is not given stays as it is.
  const now = await api.get(name)
  const most = max ?? now.scaling?.max_replicas
  if (most === undefined) throw new UsageError('--max is missing: how many replicas there may be.')
  const type = on ?? now.instance_type
  const scaling = await api.set(name, {
    scaling: {
      ...now.scaling,
      max_replicas: most,
      ...(min !== undefined && { min_replicas: min }),
      ...(requests !== undefined && { target_requests_per_replica: requests }),
      ...(utilization !== undefined && { target_gpu_utilization: utilization || null }),
      ...(upCooldown !== undefined && { scale_up_cooldown: upCooldown }),
      ...(downCooldown !== undefined && { scale_down_cooldown: downCooldown }),
    },
    ...(type && { instance_type: type }),
  })
  show(options, scaling, () => `${describe(scaling)}\n\nSee it change: ${typed(`deployments scaling ${name}`)}`)
}

function describe(state: Scaling): string {
  const { model, scaling, instance_type, instance_types, replicas, waiting, in_flight, reason, limit, error } = state
  if (!scaling)
    return `${model} runs on the shared engine. Add replicas with '${typed(`deployments scale ${model} --max 2`)}'.`
  const { min_replicas, max_replicas, target_requests_per_replica, target_gpu_utilization } = scaling
  return fields([
    ['name', model],
    [
      'replicas',
      `${replicas.ready} ready of ${replicas.desired}, ${min_replicas} to ${max_replicas} on ${instance_type}`,
    ],
    ['target', `${target_requests_per_replica} requests a replica`],
    ['utilization', target_gpu_utilization === null ? null : `${target_gpu_utilization} %`],
    ['cooldown', `${scaling.scale_up_cooldown} up, ${scaling.scale_down_cooldown} down`],
    ['requests', `${in_flight} in progress, ${waiting} waiting`],
    ['why', reason && clean(reason)],
    ['limit', limit && clean(limit)],
    ['error', error && clean(error)],
    ['places', instance_types.map(({ name, free, places }) => `${name}: ${free} of ${places} free`).join(', ')],
    ...replicas.items.map(({ state, place, in_flight }, index): [string, string] => [
      index === 0 ? 'places taken' : '',
      `${place}  ${state}  ${in_flight} in progress`,
    ]),
    ...state.decisions
      .slice(0, 20)
      .map(({ at, from, to, reason }, index): [string, string] => [
        index === 0 ? 'decisions' : '',
        `${time(at)}  ${from} to ${to}  ${clean(reason)}`,
      ]),
  ])
}

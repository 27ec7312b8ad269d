// Deployments whose replicas Ray Serve runs and scales: writes their applications, sends requests to them, and brings
// back what the cluster has lost. Loaded only where TUNERY_RAY_ADDRESS is set and a deployment scales there.

import { setTimeout as sleep } from 'node:timers/promises'
import type { Logger } from 'pino'
import { ApiError } from '../../../../contract/errors.ts'
import { runPeriodically } from '../../../../lib/periodic.ts'
import type { Servers } from '../../../platform/cluster/servers.ts'
import type { Application, ApplicationState, Serve } from '../../../platform/ray/applications.ts'
import { ApplicationTaken } from '../../../platform/ray/applications.ts'
import { RayAway, RayRefused } from '../../../platform/ray/client.ts'
import type { Deployments } from '../../deployments/index.ts'
import type { Running } from '../../feature.ts'
import type { Inference } from '../../inference/index.ts'
import {
  Pool,
  RemoteEngine,
  ReplicaFailure,
  type ReplicaState,
  type ServingSet,
  type Target,
} from '../../serving/index.ts'
import type { Decision, ScaledDeployment } from '../scaled-deployment.ts'
import { type Applications, contains, type ServedAt, withWrittenAt, writtenAt } from './applications.ts'
import { gpuOf } from './instance-types.ts'

const look_ms = 2000
const check_ms = 10_000
const startPoll_ms = 500
/** How long a request, or a switch, waits for the first replica of an application. */
const start_ms = 300_000
/** The same where the application is vLLM: its weights are many times larger. */
const vllmStart_ms = 1_800_000
/** What no row names is kept for this long: its row may be about to be written. */
const unnamed_ms = 60_000
/** A model that was prepared for a name that never switched to it. */
const prepared_ms = 15 * 60_000

export interface RayState {
  desired: number
  replicas: { id: string; state: Exclude<ReplicaState, 'ended'>; place: string; started_at: number | null }[]
  in_flight: number
  waiting: number
  reason: string | null
  error: string | null
}

interface Options {
  serve: Serve
  applications: Applications
  /** All deployments that scale in the cluster, as the database has them. */
  configured: () => Promise<ScaledDeployment[]>
  deployments: Pick<Deployments, 'findUnscoped'>
  inference: Pick<Inference, 'target'>
  servingSets: Map<string, ServingSet>
  oncePer: Servers['oncePer']
  /** Separates the accounts in a replica's prefix cache. */
  cacheSalt: (account_id: string) => string
  waiting_max: number
  record: (decision: Decision) => Promise<void>
  lastDecision: (deployment_id: string) => Promise<number>
  now: () => number
  log: Logger
}

interface Entry {
  deployment: ScaledDeployment
  engines: RemoteEngine[]
  pool: Pool<RemoteEngine>
  /** By target. */
  served: Map<string, ServedAt>
  /** What the name served last, for what is shown. */
  current: string | undefined
  starting: number
}

const keyOf = ({ base, adapter }: Target) => (adapter ? `${base.id}\n${adapter.id}` : base.id)

export class RayServing {
  private readonly options: Options
  private readonly entries = new Map<string, Entry>()
  private states = new Map<string, ApplicationState>()
  private away: RayAway | undefined
  private looking: Promise<void> | undefined

  constructor(options: Options) {
    this.options = options
  }

  /** Writes the application of a deployment. Throws an ApiError, 503 if the cluster is away. */
  async write(deployment: ScaledDeployment): Promise<void> {
    const { applications, deployments, inference } = this.options
    const current = await deployments.findUnscoped(deployment.id)
    if (!current) throw new ApiError('deployment_not_found', `There is no deployment '${deployment.name}'.`)
    const target = await inference.target(current.account_id, current.model)
    const { application } = await applications.describe(deployment, target).catch((error) => {
      throw asApiError(error)
    })
    await this.change((applications) => put(applications, application))
  }

  /** Sends the deployment's requests to its application. */
  set(deployment: ScaledDeployment): void {
    const { waiting_max, servingSets, log } = this.options
    const existing = this.entries.get(deployment.id)
    if (existing) {
      if (existing.deployment.instance_type !== deployment.instance_type) existing.served.clear()
      existing.deployment = deployment
      return
    }
    const engines: RemoteEngine[] = []
    const pool = new Pool(engines, waiting_max, () => pool.dispatchWaiting())
    const served = new Map<string, ServedAt>()
    const entry: Entry = { deployment, engines, pool, served, current: undefined, starting: 0 }
    this.entries.set(deployment.id, entry)
    servingSets.set(deployment.id, this.servingSet(entry))
    void this.look().catch((error) => log.warn({ err: error }, 'the Ray cluster was not read'))
  }

  /** Stops that, and removes its applications: at once, or as soon as the cluster answers. */
  remove(deployment_id: string): void {
    const { applications, servingSets, log } = this.options
    const entry = this.entries.get(deployment_id)
    this.entries.delete(deployment_id)
    if (entry) servingSets.delete(deployment_id)
    entry?.pool.refuseWaiting(
      new ApiError('overloaded', 'The deployment has just stopped scaling. Send the request once more.'),
    )
    void this.change((ownApplications) => {
      const prefix = applications.prefixOf(deployment_id)
      for (const name of ownApplications.keys()) if (name.startsWith(prefix)) ownApplications.delete(name)
    }).catch((error) => log.warn({ err: error }, 'an application stays in the Ray cluster until it answers'))
  }

  ids(): string[] {
    return [...this.entries.keys()]
  }

  state(deployment_id: string): RayState | undefined {
    const entry = this.entries.get(deployment_id)
    return entry && this.stateOf(entry)
  }

  /** Watches the cluster and repairs what it has, until closed. */
  start(): Running {
    const { oncePer, log } = this.options
    const failed = (error: unknown) => {
      if (!(error instanceof RayAway)) log.warn({ err: error }, 'the applications in the Ray cluster were not checked')
    }
    const watching = runPeriodically(look_ms, () =>
      this.entries.size > 0 ? this.look().catch(failed) : Promise.resolve(),
    )
    const checking = runPeriodically(check_ms, () => oncePer('ray-serve', check_ms, () => this.check()).catch(failed))
    return {
      close: async () => {
        await Promise.all([watching.close(), checking.close()])
        for (const { engines } of this.entries.values()) for (const engine of engines) engine.close()
      },
    }
  }

  /** Reads what the cluster has. While it does not answer, what was known stays: its proxies may still answer. */
  private look(): Promise<void> {
    const { serve, log } = this.options
    this.looking ??= (async () => {
      try {
        const [applications, proxies] = [await serve.own(), await serve.proxies()]
        this.states = applications
        if (this.away) log.info('the Ray cluster answers again')
        this.away = undefined
        for (const entry of this.entries.values()) this.useProxies(entry, proxies)
      } catch (error) {
        if (!(error instanceof RayAway)) throw error
        if (!this.away) log.warn({ reason: error.message }, 'the Ray cluster that serves deployments does not answer')
        this.away = error
      }
    })().finally(() => {
      this.looking = undefined
    })
    return this.looking
  }

  private useProxies(entry: Entry, proxies: string[]): void {
    for (const gone of entry.engines.filter(({ name }) => !proxies.some((proxy) => name === nameOf(proxy)))) {
      entry.engines.splice(entry.engines.indexOf(gone), 1)
      gone.close()
    }
    for (const origin of proxies.filter((proxy) => !entry.engines.some(({ name }) => name === nameOf(proxy))))
      entry.engines.push(
        new RemoteEngine({
          origin,
          max_concurrent: () => {
            const { max_replicas, target_requests_per_replica } = entry.deployment.policy
            return max_replicas * Math.max(8, 2 * target_requests_per_replica)
          },
          route: (target) => entry.served.get(keyOf(target))?.route,
          cacheSalt: this.options.cacheSalt,
          onFailed: () => void this.look().catch(() => {}),
        }),
      )
    entry.pool.dispatchWaiting()
  }

  /** An application answers: also while Serve replaces its replicas, or has none and starts one for a request. */
  private answers(name: string) {
    const state = this.states.get(name)
    if (!state) return false
    return /^(RUNNING|UNHEALTHY)$/.test(state.status) || state.replicas.some((replica) => replica.state === 'RUNNING')
  }

  private async whereIs(entry: Entry, target: Target): Promise<ServedAt> {
    const key = keyOf(target)
    const place = entry.served.get(key) ?? (await this.options.applications.whereIs(entry.deployment, target))
    entry.served.set(key, place)
    return place
  }

  /** Resolves when the application takes requests. Throws an ApiError if it does not start, or the cluster is away. */
  private async untilItAnswers({ deployment }: Entry, name: string, signal?: AbortSignal): Promise<void> {
    const { now, log } = this.options
    const limit_ms = gpuOf(deployment.instance_type) === undefined ? start_ms : vllmStart_ms
    const last = now() + limit_ms
    while (!this.answers(name)) {
      await this.look()
      if (this.answers(name)) return
      if (this.away) throw awayError(this.away)
      const state = this.states.get(name)
      if (state?.status === 'DEPLOY_FAILED')
        throw new ApiError(
          'engine_unavailable',
          `No replica of '${deployment.name}' could be started in the Ray cluster: ${state.message.slice(0, 1000)}`,
        )
      // The cluster has been restarted.
      if (!state) await this.check().catch((error) => log.warn({ err: error }, 'an application was not written again'))
      if (now() > last)
        throw new ApiError(
          'engine_unavailable',
          `'${deployment.name}' has had no replica in the Ray cluster for ${limit_ms / 1000} s. Has the cluster room ` +
            'for one? GET its scaling shows the state.',
        )
      await sleep(startPoll_ms, undefined, signal ? { signal } : {})
    }
  }

  private servingSet(entry: Entry): ServingSet {
    return {
      replicas: () => this.stateOf(entry).replicas.map(({ state }) => ({ state: () => state })),

      run: async (request, signal) => {
        let { name } = await this.whereIs(entry, request.target)
        const began_at = performance.now()
        if (!this.answers(name)) {
          // Its files may have been installed again.
          entry.served.delete(keyOf(request.target))
          name = (await this.whereIs(entry, request.target)).name
          entry.starting++
          await this.untilItAnswers(entry, name, signal).finally(() => entry.starting--)
        }
        entry.current = name
        const waited_ms = performance.now() - began_at
        if (entry.engines.length === 0) {
          await this.look()
          if (this.away) throw awayError(this.away)
          if (entry.engines.length === 0)
            throw new ApiError('engine_unavailable', 'Ray Serve has no healthy proxy now. Try again in a moment.')
        }
        try {
          const response = await entry.pool.run(request, signal)
          return waited_ms > 100 ? { ...response, start_ms: waited_ms } : response
        } catch (error) {
          if (!(error instanceof ReplicaFailure) || error.code !== 'engine_unavailable') throw error
          await this.look().catch(() => {})
          throw this.away ? awayError(this.away) : error
        }
      },

      status: (target) => {
        const at = entry.served.get(keyOf(target))
        return at && this.answers(at.name) ? 'loaded' : 'not_loaded'
      },

      prepare: async (target) => {
        const { name, application } = await this.options.applications.describe(entry.deployment, target)
        const added = await this.change((applications) => {
          if (applications.has(name)) return false
          applications.set(name, application)
          return true
        })
        try {
          await this.untilItAnswers(entry, name)
        } catch (error) {
          if (added) await this.change((applications) => applications.delete(name)).catch(() => {})
          throw error
        }
      },

      unload: async () => {},
      abortedUsage: async () => undefined,
    }
  }

  private stateOf(entry: Entry): RayState {
    const { deployment, engines, pool, starting, current } = entry
    const ours = [...this.states].filter(([name]) => name.startsWith(this.options.applications.prefixOf(deployment.id)))
    const [name, main] = ours.find(([name]) => name === current) ?? ours[0] ?? []
    const problem = this.away
      ? awayError(this.away).message
      : main && main.status !== 'RUNNING' && main.message
        ? `Ray Serve says of ${name} (${main.status}): ${main.message}`.slice(0, 2000)
        : null
    return {
      desired: main?.target_replicas ?? 0,
      replicas: ours.flatMap(([, { replicas }]) =>
        replicas.map(({ id, state, node, started_at }) => ({
          id,
          state:
            state === 'RUNNING'
              ? ('ready' as const)
              : state === 'STOPPING'
                ? ('draining' as const)
                : ('starting' as const),
          place: node,
          started_at,
        })),
      ),
      in_flight: engines.reduce((sum, engine) => sum + engine.inFlight, 0),
      waiting: pool.waiting() + starting,
      reason: main?.reason ?? (main ? `Ray Serve wants ${main.target_replicas} replicas.` : null),
      error: problem,
    }
  }

  /** Changes our applications. Throws an ApiError. */
  private async change<T>(work: (applications: Map<string, Application>) => T): Promise<T> {
    let result: T
    try {
      await this.options.serve.change((applications) => {
        result = work(applications)
      })
    } catch (error) {
      throw asApiError(error)
    }
    return result!
  }

  /** Compares what the cluster has with what the database says, and writes what differs. */
  private async check(): Promise<void> {
    const { serve, applications, configured, deployments, inference, now, log } = this.options
    const rows = await configured()
    const kept: string[] = []
    const planned: { deployment: ScaledDeployment; name: string; application: Application }[] = []
    for (const deployment of rows)
      try {
        const current = await deployments.findUnscoped(deployment.id)
        if (!current) continue
        kept.push(applications.prefixOf(deployment.id))
        const target = await inference.target(current.account_id, current.model)
        const described = await applications.describe(deployment, target)
        planned.push({ deployment, ...described })
        const entry = this.entries.get(deployment.id)
        if (entry) entry.current = described.name
      } catch (error) {
        if (error instanceof RayAway) throw error
        log.warn({ err: error, deployment: deployment.id }, 'the application of a deployment cannot be described')
      }
    const running = await serve.own()
    await serve.change((ownApplications) => {
      for (const { application } of planned) put(ownApplications, application)
      for (const [name, config] of ownApplications) {
        if (!name.startsWith(applications.prefix) || planned.some((plan) => plan.name === name)) continue
        const age_ms = now() - writtenAt(config)
        const prefix = kept.find((candidate) => name.startsWith(candidate))
        const next = prefix && planned.find((plan) => plan.name.startsWith(prefix))
        // The former model of a name answers until the next one does; one written later is about to become the next.
        const isFormer =
          next &&
          running.get(next.name)?.status === 'RUNNING' &&
          writtenAt(config) < writtenAt(ownApplications.get(next.name))
        if (isFormer || age_ms > (prefix ? prepared_ms : unnamed_ms)) ownApplications.delete(name)
      }
    })
    for (const { deployment, name } of planned) await this.recordChange(deployment, running.get(name))
  }

  private async recordChange({ id }: ScaledDeployment, state: ApplicationState | undefined): Promise<void> {
    const { record, lastDecision, now } = this.options
    if (!state) return
    const [from, to] = [await lastDecision(id), state.target_replicas]
    if (from === to) return
    const entry = this.entries.get(id)
    const { in_flight = 0, waiting = 0 } = entry ? this.stateOf(entry) : {}
    const reason = state.reason ?? 'Ray Serve decided it by its requests in progress.'
    await record({ deployment_id: id, at: now(), from, to, reason, in_flight, waiting })
  }
}

/** Puts what a deployment wants in place of what there is, unless that is the same. */
function put(applications: Map<string, Application>, application: Application): void {
  const existing = applications.get(application.name)
  const kept = existing ? withWrittenAt(application, writtenAt(existing)) : application
  if (!existing || !contains(existing, kept)) applications.set(application.name, kept)
}

const nameOf = (origin: string) => `Ray Serve at ${new URL(origin).host}`

const awayError = ({ message }: RayAway) =>
  new ApiError(
    'engine_unavailable',
    `The Ray cluster (TUNERY_RAY_ADDRESS) is away: ${message}. Try again when it answers; nothing is lost meanwhile.`,
    { details: { retry_after_seconds: 10 } },
  )

function asApiError(error: unknown): unknown {
  if (error instanceof RayAway) return awayError(error)
  if (error instanceof RayRefused)
    return new ApiError('engine_failed', `Ray Serve refused the application: ${error.message}`)
  return error instanceof ApplicationTaken ? new ApiError('engine_failed', error.message) : error
}

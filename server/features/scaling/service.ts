import type { Logger } from 'pino'
import { ApiError } from '../../../contract/errors.ts'
import { replicasMax, type Scaling, ScalingPolicy, type ScalingRequest } from '../../../contract/scaling.ts'
import { newId } from '../../../lib/ids.ts'
import { createMutex } from '../../../lib/mutex.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type AccountActor, recordAuditEntry } from '../../platform/events/audit.ts'
import type { Plans } from '../../platform/plans.ts'
import type { Deployments } from '../deployments/index.ts'
import type { Inference } from '../inference/index.ts'
import type { Controller } from './controller.ts'
import type { Places } from './places.ts'
import { isRay, rayCores, rayGpu } from './ray/instance-types.ts'
import type { RayServing, RayState } from './ray/serving.ts'
import type { Decision, ScaledDeployment } from './scaled-deployment.ts'
import * as store from './store.ts'

/** Decisions that are kept of a deployment, and that are shown. */
const kept = 500
const shown = 100

interface Options {
  db: Db
  deployments: Deployments
  inference: Pick<Inference, 'target' | 'aliasesChanged'>
  plans: Pick<Plans, 'tierOrTightest'>
  controller: () => Promise<Controller>
  /** The controller, if anything scales. */
  running: () => Controller | undefined
  places: () => Promise<Places>
  /** Undefined without a Ray cluster. */
  ray: RayServing | undefined
  /** Ray's names of the cluster's kinds of GPU. */
  rayGpus: string[]
  now: () => number
  log: Logger
}

export class ScalingService {
  private readonly options: Options
  /** One reading of the database at a time, so that an older one never replaces a newer one. */
  private readonly mutex = createMutex()
  /** A reading that has not begun. */
  private next: Promise<void> | undefined
  /** Deployments that a setting keeps from their cluster; told once. */
  private readonly told = new Set<string>()

  constructor(options: Options) {
    this.options = options
  }

  async put(by: AccountActor, name: string, { model, scaling, instance_type }: ScalingRequest): Promise<Scaling> {
    const { db, deployments, inference, ray, now } = this.options
    const deployment = await deployments.require(by.account_id, name)
    if (model !== undefined && model !== name && model !== deployment.model)
      throw new ApiError(
        'invalid_request',
        `'model' is '${model}', but this address scales '${name}', which serves '${deployment.model}'. Leave it out.`,
        { param: 'model' },
      )
    const target = await inference.target(by.account_id, deployment.model)
    if (target.base.gguf === undefined)
      throw new ApiError(
        'model_not_callable',
        `The weights of '${target.base.id}' are not on this machine: servers that the operator named serve it ` +
          '(TUNERY_UPSTREAMS). Only what this machine serves can be scaled here.',
      )
    const row = {
      deployment_id: deployment.id,
      policy_json: JSON.stringify(scaling),
      instance_type: await this.requireClass(instance_type),
      updated_at: now(),
    }
    const assertLimit = (trx: Trx) => this.assertReplicasLimit(trx, by.account_id, deployment.id, scaling.max_replicas)
    if (isRay(row.instance_type)) {
      // Before it is stored: a refused change, or a cluster that is away, changes nothing.
      await db.transaction().execute(assertLimit)
      await ray!.write(scaled(row, deployment))
    }
    await db.transaction().execute(async (trx) => {
      if (!(await trx.selectFrom('deployments').select('id').where('id', '=', deployment.id).executeTakeFirst()))
        throw new ApiError('deployment_not_found', `The deployment '${name}' was deleted in the meantime.`)
      await assertLimit(trx)
      await store.save(trx, row)
      const details = { name, instance_type: row.instance_type, ...scaling }
      await recordAuditEntry(trx, by, 'scaling.changed', deployment.id, details, now())
    })
    await this.refresh()
    await inference.aliasesChanged(by.account_id)
    return this.toResponse(deployment)
  }

  async get(account_id: string, name: string): Promise<Scaling> {
    return this.toResponse(await this.options.deployments.require(account_id, name))
  }

  async delete(by: AccountActor, name: string): Promise<{ id: string; deleted: true }> {
    const { db, deployments, inference, now } = this.options
    const { id } = await deployments.require(by.account_id, name)
    await db.transaction().execute(async (trx) => {
      if (!(await store.remove(trx, id)))
        throw new ApiError('not_found', `'${name}' does not scale. PUT /v1/deployments/${name}/scaling lets it.`)
      await recordAuditEntry(trx, by, 'scaling.removed', id, { name }, now())
    })
    await this.refresh()
    await inference.aliasesChanged(by.account_id)
    return { id, deleted: true }
  }

  /** Makes this process scale what the database says, as it is at the call or later. */
  refresh() {
    this.next ??= this.mutex(() => {
      this.next = undefined
      return this.applyAll()
    })
    return this.next
  }

  private async instanceTypes() {
    const { places, ray, rayGpus } = this.options
    const classes = await (await places()).classes()
    if (!ray) return classes
    const taken = ray.ids().reduce((sum, id) => sum + (ray.state(id)?.replicas.length ?? 0), 0)
    const room = { places: replicasMax, free: Math.max(0, replicasMax - taken) }
    return [...classes, ...[rayCores, ...rayGpus.map(rayGpu)].map((name) => ({ name, ...room }))]
  }

  private async requireClass(requested: string | undefined): Promise<string> {
    if (requested !== undefined && isRay(requested) && !this.options.ray)
      throw new ApiError(
        'invalid_request',
        `'instance_type' is '${requested}', but no Ray cluster is set (TUNERY_RAY_ADDRESS).`,
        { param: 'instance_type' },
      )
    const classes = await this.instanceTypes()
    const name = requested ?? classes[0]!.name
    if (classes.some((instance) => instance.name === name)) return name
    throw new ApiError(
      'invalid_request',
      `'instance_type' is '${name}', which is not known here. There are: ` +
        `${classes.map((instance) => instance.name).join(', ')}.` +
        `${isRay(name) ? ' TUNERY_RAY_GPUS names the kinds of GPU of the Ray cluster.' : ''}`,
      { param: 'instance_type' },
    )
  }

  private async toResponse(deployment: { id: string; name: string }): Promise<Scaling> {
    const { db, running, ray, now } = this.options
    const row = await store.find(db, deployment.id)
    const decisions = row ? await store.decisions(db, deployment.id, shown) : []
    const instance_types = await this.instanceTypes()
    // From here on without waiting: a replica may end at any time.
    const local = row && running()?.state(deployment.id)
    const state = local ?? (row && ray?.state(deployment.id))
    const policy = row && policyOf(row)
    const items: Scaling['replicas']['items'] = local
      ? local.replicas.map((replica) => ({
          id: replica.id,
          state: replica.state() as 'starting' | 'ready' | 'draining',
          place: replica.placement.name,
          started_at: isoTime(replica.started_at),
          ready_at: isoTime(replica.ready_at() ?? null),
          in_flight: replica.inFlight,
        }))
      : ((state as RayState | undefined)?.replicas.map((replica) => ({
          ...replica,
          started_at: isoTime(replica.started_at ?? now()),
          ready_at: null,
          // Known to Serve alone.
          in_flight: 0,
        })) ?? [])
    const count = (state: string) => items.filter((item) => item.state === state).length
    return {
      model: deployment.name,
      scaling: policy ? { ...policy, target_gpu_utilization: policy.target_gpu_utilization ?? null } : null,
      instance_type: row?.instance_type ?? null,
      replicas: {
        desired: state?.desired ?? 0,
        ready: count('ready'),
        starting: count('starting'),
        draining: count('draining'),
        items,
      },
      in_flight: state?.in_flight ?? 0,
      waiting: state?.waiting ?? 0,
      utilization: local?.utilization ?? null,
      reason: state?.reason ?? null,
      limit: local?.limit ?? null,
      error: state?.error ?? null,
      decisions: decisions.map(({ created_at, from_replicas, to_replicas, reason, in_flight, waiting, server }) => ({
        at: isoTime(created_at),
        from: from_replicas,
        to: to_replicas,
        reason,
        in_flight,
        waiting,
        server,
      })),
      instance_types,
    }
  }

  /** Throws an ApiError if the deployments of the account may have more replicas then than its tier allows. */
  private async assertReplicasLimit(
    trx: Trx,
    account_id: string,
    deployment_id: string,
    requested: number,
  ): Promise<void> {
    const account = await trx.selectFrom('accounts').select('tier').where('id', '=', account_id).executeTakeFirst()
    const tier = this.options.plans.tierOrTightest(account?.tier ?? '')
    const max = tier.max_replicas
    if (max === null) return
    const mostOf = (row: store.ScalingRow) => policyOf(row).max_replicas
    const rows = await store.ofAccount(trx, account_id)
    const current = rows.find((row) => row.deployment_id === deployment_id)
    // Above a limit that was lowered, the way down is open.
    if (current && requested <= mostOf(current)) return
    const others = rows.filter((row) => row !== current).reduce((sum, row) => sum + mostOf(row), 0)
    if (others + requested <= max) return
    throw new ApiError(
      'too_many',
      `'max_replicas' is ${requested}, and the account's other deployments have ${others}: its tier '${tier.name}' ` +
        `allows ${max} in all, so at most ${Math.max(0, max - others)} here. Lower 'max_replicas', or that of ` +
        'another deployment, or ask the operator for another tier.',
      { param: 'scaling.max_replicas', details: { limit: 'max_replicas', max, used: others } },
    )
  }

  /** Lets the one that the instance type names serve a deployment, and not the other. */
  private async apply(deployment: ScaledDeployment): Promise<void> {
    const { controller, running, ray } = this.options
    if (isRay(deployment.instance_type) && ray) {
      running()?.remove(deployment.id)
      ray.set(deployment)
      return
    }
    if (ray?.ids().includes(deployment.id)) ray.remove(deployment.id)
    ;(await controller()).set(deployment)
  }

  private async applyAll(): Promise<void> {
    const { db, deployments, running, ray, log } = this.options
    const rows = await store.listAll(db)
    const runningIds = new Set(running()?.ids() ?? [])
    const knownInRay = new Set(ray?.ids() ?? [])
    for (const row of rows) {
      const deployment = await deployments.findUnscoped(row.deployment_id)
      if (!deployment) continue
      if (isRay(row.instance_type) && !ray) {
        if (!this.told.has(row.deployment_id))
          log.warn(
            { deployment: row.deployment_id },
            'it scales on Ray, and TUNERY_RAY_ADDRESS is not set: the engine of this machine serves it',
          )
        this.told.add(row.deployment_id)
        continue
      }
      runningIds.delete(row.deployment_id)
      knownInRay.delete(row.deployment_id)
      await this.apply(scaled(row, deployment))
    }
    for (const id of runningIds) running()?.remove(id)
    for (const id of knownInRay) ray?.remove(id)
  }
}

const policyOf = ({ policy_json }: Pick<store.ScalingRow, 'policy_json'>) =>
  ScalingPolicy.parse(JSON.parse(policy_json))

const scaled = (
  row: store.ScalingRow,
  { id, account_id, name }: Pick<ScaledDeployment, 'id' | 'account_id' | 'name'>,
) => ({ id, account_id, name, policy: policyOf(row), instance_type: row.instance_type })

/** The deployments that scale on one of the chosen instance types. */
export async function configuredIn(
  db: Db,
  deployments: Pick<Deployments, 'findUnscoped'>,
  chosen: (instance_type: string) => boolean,
): Promise<ScaledDeployment[]> {
  const rows = (await store.listAll(db)).filter((row) => chosen(row.instance_type))
  const results = await Promise.all(
    rows.map(async (row) => {
      const deployment = await deployments.findUnscoped(row.deployment_id)
      return deployment ? [scaled(row, deployment)] : []
    }),
  )
  return results.flat()
}

/** Stores a decision of this server process. */
export const recordDecision = (db: Db, server: string) => (decision: Decision) =>
  db.transaction().execute((trx) => {
    const { deployment_id, at, from, to, reason, in_flight, waiting } = decision
    const row = {
      id: newId('scd'),
      deployment_id,
      server,
      from_replicas: from,
      to_replicas: to,
      in_flight,
      waiting,
      reason,
    }
    return store.insertDecision(trx, { ...row, created_at: at }, kept)
  })

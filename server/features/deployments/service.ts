import type { ListQuery } from '../../../contract/common.ts'
import type { Deployment, DeploymentChange, DeploymentQuery, Gate } from '../../../contract/deployments.ts'
import { ApiError } from '../../../contract/errors.ts'
import type { PeriodQuery, Timeline } from '../../../contract/timeline.ts'
import { newId } from '../../../lib/ids.ts'
import { isoTime } from '../../../lib/utc-day.ts'
import { fromJson } from '../../platform/db/json.ts'
import type { Db, Trx } from '../../platform/db/open.ts'
import { type Page, pageOf } from '../../platform/db/page.ts'
import { isUniqueViolation } from '../../platform/db/unique-violation.ts'
import { type AccountActor, recordAuditEntry, serviceActor } from '../../platform/events/audit.ts'
import { recordEvent } from '../../platform/events/outbox.ts'
import type { Claim, Queue } from '../../platform/queue/queue.ts'
import { type Evaluations, isActive } from '../evaluations/index.ts'
import type { EventBus } from '../events.ts'
import type { Downloads } from '../hub/index.ts'
import type { Inference } from '../inference/index.ts'
import type { TunedModels } from '../models/index.ts'
import type { Usage } from '../usage/index.ts'
import { decide, type Pending } from './gate.ts'
import * as store from './store.ts'

type KeyActor = AccountActor & { key_id: string | null }

export interface DeploymentsNeeds {
  models: TunedModels
  inference: Inference
  downloads: Downloads
  evaluations: Evaluations
  usage: Usage
}

export class Deployments {
  private readonly options: DeploymentsNeeds & { db: Db; queue: Queue; events: EventBus; now: () => number }

  constructor(options: DeploymentsNeeds & { db: Db; queue: Queue; events: EventBus; now: () => number }) {
    this.options = options
    const { events, now } = this.options
    events.on('download.changed', async (trx, { model_id: model, download: { status, error } }) => {
      if (!['completed', 'failed', 'cancelled'].includes(status)) return undefined
      const waiting = (await store.listStarting(trx)).filter((deployment) => deployment.model === model)
      if (status !== 'completed') {
        const why = error?.message ?? 'it was cancelled.'
        const error_json = JSON.stringify({
          code: 'download_failed',
          message: `The download of the weights of ${model} failed: ${why}`,
        })
        for (const { id } of waiting) await store.update(trx, id, { status: 'failed', error_json, updated_at: now() })
        return undefined
      }
      return () => {
        // If the database fails here, `recover` finishes the deployment at the next start.
        for (const deployment of waiting) this.loadAndRecord(deployment).catch(() => {})
      }
    })
  }

  async create(by: AccountActor, { model, name }: { model: string; name: string }): Promise<Deployment> {
    const { db, inference, downloads, now } = this.options
    const { account_id } = by
    const nameTaken = () =>
      new ApiError(
        'name_taken',
        `The name '${name}' is taken. Choose another, or PUT /v1/deployments/${name} to let it serve another model.`,
        { details: { name } },
      )
    if (inference.isBase(name)) throw nameTaken()
    const needsWeights = await this.needsDownload(by, model)
    await inference.requireVerified(account_id, model)
    const time = now()
    const deployment = {
      id: newId('dep'),
      account_id,
      name,
      model,
      status: 'starting' as const,
      error_json: null,
      former_model: null,
      pending_json: null,
      created_at: time,
      updated_at: time,
    }
    try {
      await db.transaction().execute(async (trx) => {
        await this.requireModelExists(trx, account_id, model)
        await store.insert(trx, deployment)
        await store.recordChange(trx, deployment, 'created', model, now())
        await recordAuditEntry(trx, by, 'deployment.created', deployment.id, { name, model }, time)
        if (needsWeights) await downloads.request(trx, by, model)
      })
      await inference.aliasesChanged(account_id)
    } catch (error) {
      if (isUniqueViolation(error)) throw nameTaken()
      throw error
    }
    if (needsWeights) await downloads.publishRequest(model)
    else await this.loadAndRecord(deployment)
    return this.toResponse(await this.require(account_id, name))
  }

  /**
   * Points a deployment at another model, which is loaded first, so that requests are served without a gap. With a gate
   * an evaluation decides; the deployment is `pending` until then.
   */
  async switch(
    by: KeyActor,
    name: string,
    { model, gate }: { model: string; gate?: Gate | undefined },
  ): Promise<Deployment> {
    const { db, inference, evaluations, now } = this.options
    const { account_id } = by
    const deployment = await this.require(account_id, name)
    const pending = fromJson(deployment.pending_json)
    if (pending) throw gatePending(name, pending)
    if (!gate) {
      await this.switchTo(by, deployment, model, 'switched')
      return this.toResponse(await this.require(account_id, name))
    }
    await inference.target(account_id, model)
    await inference.requireVerified(account_id, model)
    await evaluations.creation.requireSight(account_id, gate.evaluation, { model, baseline: deployment.model })
    await db.transaction().execute(async (trx) => {
      const current = await requireCurrent(trx, deployment)
      const earlier = fromJson(current.pending_json)
      if (earlier) throw gatePending(name, earlier)
      const evaluation = await evaluations.creation.repeat(trx, by, gate.evaluation, { model, baseline: current.model })
      const pending_json = JSON.stringify({ model, evaluation, gate } satisfies Pending)
      await store.update(trx, deployment.id, { pending_json, updated_at: now() })
      await recordAuditEntry(trx, by, 'deployment.gated', deployment.id, { name, model, evaluation }, now())
    })
    evaluations.wake()
    return this.toResponse(await this.require(account_id, name))
  }

  /** Returns to the model that was served before. */
  async rollback(by: AccountActor, name: string): Promise<Deployment> {
    const deployment = await this.require(by.account_id, name)
    if (deployment.former_model === null)
      throw new ApiError('invalid_request', `'${name}' served no other model before, so it cannot be rolled back.`)
    const pending = await this.switchTo(by, deployment, deployment.former_model, 'rolled_back')
    // Nobody waits for its result any more.
    if (pending) await this.options.evaluations.cancel(by, pending.evaluation).catch(unlessRefused)
    return this.toResponse(await this.require(by.account_id, name))
  }

  async history(account_id: string, name: string, query: ListQuery): Promise<Page<DeploymentChange>> {
    const { db } = this.options
    const { id } = await this.require(account_id, name)
    const after = query.after === undefined ? undefined : await store.findChange(db, id, query.after)
    if (query.after !== undefined && !after)
      throw new ApiError('invalid_request', `'after': there is no change '${query.after}'.`, { param: 'after' })
    const rows = await store.listChanges(db, id, query.limit, after)
    return pageOf(
      rows.map(({ id, action, model, former_model, evaluation_id, reason, created_at }) => ({
        id,
        action,
        model,
        former_model,
        evaluation: evaluation_id,
        reason,
        created_at: isoTime(created_at),
      })),
      query.limit,
    )
  }

  /** Lets a model serve that has passed its gate. */
  async finishGate(claim: Claim): Promise<void> {
    const { db, queue, evaluations, now } = this.options
    const deployment = await store.findUnscoped(db, claim.ref)
    const pending = deployment && fromJson(deployment.pending_json)
    if (!pending) return await db.transaction().execute((trx) => queue.finish(trx, claim, 'done'))
    const { account_id } = deployment
    const decided = await evaluations.result(account_id, pending.evaluation).catch(unlessRefused)
    if (decided && isActive(decided)) return await db.transaction().execute((trx) => queue.finish(trx, claim, 'done'))
    const { passes, reason } = decided
      ? decide(pending.gate, decided)
      : { passes: false, reason: 'The evaluation was deleted.' }
    const by = { ...serviceActor, account_id }
    const more = { evaluation_id: pending.evaluation, reason }
    try {
      if (!passes) throw new GateVoid()
      await this.switchTo(by, deployment, pending.model, 'gate_passed', more, (trx) => queue.finish(trx, claim, 'done'))
    } catch (error) {
      if (!(error instanceof GateVoid) && (!(error instanceof ApiError) || error.status >= 500)) throw error
      await db.transaction().execute(async (trx) => {
        const current = await store.findUnscoped(trx, deployment.id)
        if (current && fromJson(current.pending_json)?.evaluation === pending.evaluation) {
          await store.update(trx, deployment.id, { pending_json: null, updated_at: now() })
          const refused = passes ? { ...more, reason: `${reason} But it cannot be served: ${error.message}` } : more
          await store.recordChange(trx, current, 'gate_refused', pending.model, now(), refused)
        }
        await queue.finish(trx, claim, 'done')
      })
    }
  }

  async list(account_id: string, query: DeploymentQuery): Promise<Page<Deployment>> {
    const { db } = this.options
    const { limit, after } = query
    const last = after ? await store.findById(db, account_id, after) : undefined
    if (after && !last)
      throw new ApiError('deployment_not_found', `There is no deployment '${after}' to continue after.`)
    const rows = await store.list(db, account_id, query, last)
    return pageOf(await Promise.all(rows.map((row) => this.toResponse(row))), limit)
  }

  async get(account_id: string, name: string): Promise<Deployment> {
    return this.toResponse(await this.require(account_id, name))
  }

  /** Figures of the requests for its name, over time. */
  async metrics(account_id: string, name: string, period: PeriodQuery): Promise<Timeline> {
    await this.require(account_id, name)
    return this.options.usage.timeline(account_id, name, period)
  }

  async delete(by: AccountActor, name: string): Promise<{ id: string; deleted: true }> {
    const { db, events, inference, evaluations, now } = this.options
    const deployment = await this.require(by.account_id, name)
    const { id, model } = deployment
    const removeReplicas = await db.transaction().execute(async (trx) => {
      const removed = await store.remove(trx, id)
      const effects = await events.emit(trx, 'deployment.deleted', { id })
      if (removed.numDeletedRows > 0n) await recordAuditEntry(trx, by, 'deployment.deleted', id, { name, model }, now())
      return effects
    })
    removeReplicas()
    await inference.aliasesChanged(by.account_id)
    const pending = fromJson(deployment.pending_json)
    if (pending) await evaluations.cancel(by, pending.evaluation).catch(unlessRefused)
    return { id, deleted: true }
  }

  /** The deployment with this name. Throws deployment_not_found. */
  async require(account_id: string, name: string) {
    const deployment = await store.find(this.options.db, account_id, name)
    if (!deployment) throw new ApiError('deployment_not_found', `There is no deployment '${name}'.`)
    return deployment
  }

  /** The same by its id, of any account. */
  findUnscoped(id: string): Promise<Pick<store.DeploymentRow, 'id' | 'name' | 'account_id' | 'model'> | undefined> {
    return store.findUnscoped(this.options.db, id)
  }

  /** Finishes deployments that were starting when the service was killed. */
  async recover(): Promise<void> {
    const { db, downloads } = this.options
    for (const deployment of await store.listStarting(db))
      if (!downloads.isLive(deployment.model)) await this.loadAndRecord(deployment)
  }

  /** Checks again in the transaction: the model may have been deleted while it was compared and loaded. */
  private async requireModelExists(trx: Trx, account_id: string, model: string): Promise<void> {
    const { models, inference } = this.options
    if (!inference.isBase(model)) await models.require(trx, account_id, model)
  }

  /** Those that are ready, of a deployment with dedicated replicas. */
  private replicasOf(id: string) {
    return (
      this.options.inference
        .replicaSet(id)
        ?.replicas()
        .filter((replica) => replica.state() === 'ready').length ?? 1
    )
  }

  private async toResponse(deployment: store.DeploymentRow): Promise<Deployment> {
    return {
      id: deployment.id,
      name: deployment.name,
      model: deployment.model,
      base_model_id: await this.options.inference.baseId(deployment.account_id, deployment.model),
      status: deployment.status,
      error: fromJson(deployment.error_json),
      former_model: deployment.former_model,
      pending: fromJson(deployment.pending_json),
      replicas: this.replicasOf(deployment.id),
      created_at: isoTime(deployment.created_at),
      updated_at: isoTime(deployment.updated_at),
    }
  }

  /** Whether the model is a base whose weights must and can be downloaded first. Throws if it cannot be served. */
  private async needsDownload(by: AccountActor, model: string): Promise<boolean> {
    const { inference, downloads } = this.options
    try {
      await inference.target(by.account_id, model)
      return false
    } catch (error) {
      if (
        error instanceof ApiError &&
        error.code === 'model_not_available' &&
        inference.isBase(model) &&
        (await downloads.needsDownload(by, model))
      )
        return true
      throw error
    }
  }

  /** Loads a deployment's model ahead of its first request and records the outcome. */
  private async loadAndRecord(deployment: store.DeploymentRow): Promise<void> {
    const { db, inference, now } = this.options
    const { id, account_id, model } = deployment
    const failure = await inference
      .target(account_id, model)
      .then((target) => inference.load(target))
      .then(
        () => undefined,
        (error: unknown) => (error instanceof ApiError ? error : new ApiError('engine_failed', String(error))),
      )
    await db.transaction().execute(async (trx) => {
      const error_json = failure ? JSON.stringify({ code: failure.code, message: failure.message }) : null
      const updated = await store.update(trx, id, {
        status: failure ? 'failed' : 'ready',
        error_json,
        updated_at: now(),
      })
      if (!failure && updated.numUpdatedRows > 0n)
        await recordEvent(trx, account_id, 'model.deployed', deployedEvent(deployment), now())
    })
  }

  /**
   * Loads the model first, so that requests are served without a gap. `also` writes in the transaction that switches.
   * Resolves with the gate that a roll-back ended.
   */
  private async switchTo(
    by: AccountActor,
    deployment: store.DeploymentRow,
    model: string,
    action: 'switched' | 'gate_passed' | 'rolled_back',
    more: { evaluation_id?: string; reason?: string } = {},
    also: (trx: Trx) => Promise<void> = async () => {},
  ): Promise<Pending | null> {
    const { db, queue, inference, now } = this.options
    const { account_id } = by
    const { name } = deployment
    const target = await inference.target(account_id, model)
    await inference.requireVerified(account_id, model)
    await inference.load(target, deployment.id)
    const waited = await db.transaction().execute(async (trx) => {
      await this.requireModelExists(trx, account_id, model)
      // Loading took a while: it may have changed.
      const current = await requireCurrent(trx, deployment)
      const pending = fromJson(current.pending_json)
      if (action === 'switched' && pending) throw gatePending(name, pending)
      if (action === 'gate_passed' && pending?.evaluation !== more.evaluation_id) throw new GateVoid()
      if (action === 'rolled_back' && pending) {
        await store.recordChange(trx, current, 'gate_refused', pending.model, now(), {
          evaluation_id: pending.evaluation,
          reason: 'The name was rolled back before the gate had decided.',
        })
        // It may have passed already and wait to switch.
        await queue.cancel(trx, store.queueKind, deployment.id)
      }
      await store.update(trx, deployment.id, {
        model,
        former_model: current.model === model ? current.former_model : current.model,
        status: 'ready',
        error_json: null,
        pending_json: null,
        updated_at: now(),
      })
      await recordEvent(trx, account_id, 'model.deployed', deployedEvent({ ...deployment, model }), now())
      await store.recordChange(trx, current, action, model, now(), more)
      const change = { name, from: current.model, to: model }
      await recordAuditEntry(trx, by, 'deployment.switched', deployment.id, change, now())
      await also(trx)
      return pending
    })
    await inference.aliasesChanged(account_id)
    return waited
  }
}

function deployedEvent(deployment: { id: string; name: string; model: string }) {
  return { deployment_id: deployment.id, name: deployment.name, model_id: deployment.model }
}

/** Throws deployment_not_found if it was deleted. */
async function requireCurrent(trx: Trx, { id, name }: store.DeploymentRow): Promise<store.DeploymentRow> {
  const deployment = await store.findUnscoped(trx, id)
  if (!deployment) throw new ApiError('deployment_not_found', `The deployment '${name}' was deleted in the meantime.`)
  return deployment
}

/** A gate that does not switch: it was refused, or its name rolled back or deleted in the meantime. */
class GateVoid extends Error {}

const gatePending = (name: string, { evaluation }: Pending) =>
  new ApiError(
    'gate_pending',
    `'${name}' waits for the evaluation ${evaluation}. Wait for it, or cancel it: ` +
      `POST /v1/evaluations/${evaluation}/cancel.`,
    { details: { evaluation } },
  )

/** Undefined for an evaluation that is gone, or has ended in the meantime. */
function unlessRefused(error: unknown): undefined {
  if (!(error instanceof ApiError)) throw error
}

import type { Deployment, DeploymentQuery } from '../../contract/deployments.ts'
import { ApiError } from '../../contract/errors.ts'
import { newId } from '../../lib/ids.ts'
import { isoTime } from '../../lib/utc-day.ts'
import type { Db, Trx } from '../db/open.ts'
import { type Page, pageOf } from '../db/page.ts'
import { type AccountActor, recordAuditEntry } from '../events/audit.ts'
import { recordEvent } from '../events/outbox.ts'
import type { TunedModels } from '../fine-tuning/index.ts'
import type { Downloads } from '../hub/index.ts'
import type { Inference } from '../inference/index.ts'
import * as store from './store.ts'

export interface Deployments {
  create(by: AccountActor, request: { model: string; name: string }): Promise<Deployment>
  /** Points a deployment at another model, which is loaded first, so that requests are served without a gap. */
  switch(by: AccountActor, name: string, model: string): Promise<Deployment>
  list(account_id: string, query: DeploymentQuery): Promise<Page<Deployment>>
  get(account_id: string, name: string): Promise<Deployment>
  delete(by: AccountActor, name: string): Promise<{ id: string; deleted: true }>
  /** Finishes deployments that were starting when the service was killed. */
  recover(): Promise<void>
}

export interface DeploymentsNeeds {
  models: TunedModels
  inference: Inference
  downloads: Downloads
}

export function createDeployments({
  db,
  models,
  inference,
  downloads,
  now,
}: DeploymentsNeeds & { db: Db; now: () => number }): Deployments {
  inference.setAliases({
    find: (account_id, name) => store.find(db, account_id, name),
    list: (account_id) => store.listAll(db, account_id),
  })

  models.onNeeded(async (trx, account_id, model_id) => {
    const deployment = await store.findServing(trx, account_id, model_id)
    return deployment && `the deployment ${deployment.name}`
  })

  /** Checks again in the transaction: the model may have been deleted while it was compared and loaded. */
  async function requireModelExists(trx: Trx, account_id: string, model: string): Promise<void> {
    if (!inference.isBase(model)) await models.require(trx, account_id, model)
  }

  async function requireDeployment(account_id: string, name: string) {
    const found = await store.find(db, account_id, name)
    if (!found) throw new ApiError('deployment_not_found', `There is no deployment '${name}'.`)
    return found
  }

  async function toResponse(deployment: store.DeploymentRow): Promise<Deployment> {
    return {
      id: deployment.id,
      name: deployment.name,
      model: deployment.model,
      base_model_id: await inference.baseId(deployment.account_id, deployment.model),
      status: deployment.status,
      error: deployment.error_json ? JSON.parse(deployment.error_json) : null,
      replicas: 1,
      created_at: isoTime(deployment.created_at),
      updated_at: isoTime(deployment.updated_at),
    }
  }

  /** Whether the model is a base whose weights must and can be downloaded first. Throws if it cannot be served. */
  async function needsDownload(by: AccountActor, model: string): Promise<boolean> {
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

  downloads.onChange(async (trx, model, { status, error }) => {
    if (!['completed', 'failed', 'cancelled'].includes(status)) return () => {}
    const waiting = (await store.listStarting(trx)).filter((deployment) => deployment.model === model)
    if (status !== 'completed') {
      const why = error?.message ?? 'it was cancelled.'
      const error_json = JSON.stringify({
        code: 'download_failed',
        message: `The download of the weights of ${model} failed: ${why}`,
      })
      for (const { id } of waiting) await store.update(trx, id, { status: 'failed', error_json, updated_at: now() })
      return () => {}
    }
    return () => {
      // If the database fails here, `recover` finishes the deployment at the next start.
      for (const deployment of waiting) loadAndRecord(deployment).catch(() => {})
    }
  })

  const deployedEvent = (deployment: { id: string; name: string; model: string }) => ({
    deployment_id: deployment.id,
    name: deployment.name,
    model_id: deployment.model,
  })

  /** Loads a deployment's model ahead of its first request and records the outcome. */
  async function loadAndRecord(deployment: store.DeploymentRow): Promise<void> {
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

  return {
    async create(by, { model, name }) {
      const { account_id } = by
      const nameTaken = () =>
        new ApiError(
          'name_taken',
          `The name '${name}' is taken. Choose another, or PUT /v1/deployments/${name} to let it serve another model.`,
          {
            details: { name },
          },
        )
      if (inference.isBase(name)) throw nameTaken()
      const needsWeights = await needsDownload(by, model)
      await inference.requireVerified(account_id, model)
      const time = now()
      const deployment = {
        id: newId('dep'),
        account_id,
        name,
        model,
        status: 'starting' as const,
        error_json: null,
        created_at: time,
        updated_at: time,
      }
      try {
        await db.transaction().execute(async (trx) => {
          await requireModelExists(trx, account_id, model)
          await store.insert(trx, deployment)
          await recordAuditEntry(trx, by, 'deployment.created', deployment.id, { name, model }, time)
          if (needsWeights) await downloads.request(trx, by, model)
        })
        inference.aliasesChanged()
      } catch (error) {
        if (/UNIQUE|duplicate key/i.test((error as Error).message)) throw nameTaken()
        throw error
      }
      if (needsWeights) await downloads.publishRequest(model)
      else await loadAndRecord(deployment)
      return toResponse(await requireDeployment(account_id, name))
    },

    async switch(by, name, model) {
      const { account_id } = by
      const deployment = await requireDeployment(account_id, name)
      const target = await inference.target(account_id, model)
      await inference.requireVerified(account_id, model)
      await inference.load(target)
      await db.transaction().execute(async (trx) => {
        await requireModelExists(trx, account_id, model)
        const updated = await store.update(trx, deployment.id, {
          model,
          status: 'ready',
          error_json: null,
          updated_at: now(),
        })
        if (updated.numUpdatedRows === 0n)
          throw new ApiError('deployment_not_found', `The deployment '${name}' was deleted in the meantime.`)
        await recordEvent(trx, account_id, 'model.deployed', deployedEvent({ ...deployment, model }), now())
        await recordAuditEntry(
          trx,
          by,
          'deployment.switched',
          deployment.id,
          { name, from: deployment.model, to: model },
          now(),
        )
      })
      inference.aliasesChanged()
      return toResponse(await requireDeployment(account_id, name))
    },

    async list(account_id, query) {
      const { limit, after } = query
      const last = after ? await store.byId(db, account_id, after) : undefined
      if (after && !last)
        throw new ApiError('deployment_not_found', `There is no deployment '${after}' to continue after.`)
      const rows = await store.list(db, account_id, query, last)
      return pageOf(await Promise.all(rows.map(toResponse)), limit)
    },

    async recover() {
      for (const deployment of await store.listStarting(db))
        if (!downloads.isLive(deployment.model)) await loadAndRecord(deployment)
    },

    get: async (account_id, name) => toResponse(await requireDeployment(account_id, name)),

    async delete(by, name) {
      const { id, model } = await requireDeployment(by.account_id, name)
      await db.transaction().execute(async (trx) => {
        const removed = await store.remove(trx, id)
        if (removed.numDeletedRows > 0n)
          await recordAuditEntry(trx, by, 'deployment.deleted', id, { name, model }, now())
      })
      inference.aliasesChanged()
      return { id, deleted: true }
    },
  }
}

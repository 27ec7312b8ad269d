import type { Deployment, DeploymentQuery } from '../../contract/deployments.ts'
import { ApiError } from '../../contract/errors.ts'
import { newId } from '../../lib/ids.ts'
import type { Db, Trx } from '../db/open.ts'
import { type By, recordAct } from '../events/audit.ts'
import { recordEvent } from '../events/outbox.ts'
import type { TunedModels } from '../fine-tuning/models/registry.ts'
import type { Downloads } from '../hub/downloads.ts'
import type { Inference } from '../inference/service.ts'
import * as store from './store.ts'

export interface Deployments {
  create(by: By, request: { model: string; name: string }): Promise<Deployment>
  /** Lets a name serve another model. The new one is loaded first; a request sees the old or the new, never neither. */
  switch(by: By, name: string, model: string): Promise<Deployment>
  list(account_id: string, query: DeploymentQuery): Promise<{ items: Deployment[]; has_more: boolean }>
  get(account_id: string, name: string): Promise<Deployment>
  delete(by: By, name: string): Promise<{ id: string; deleted: true }>
  /** Brings those to an end that were starting when the service was killed. */
  recover(): Promise<void>
}

export function createDeployments({
  db,
  models,
  inference,
  downloads,
  now = Date.now,
}: {
  db: Db
  models: TunedModels
  inference: Inference
  downloads: Downloads
  now?: () => number
}): Deployments {
  inference.useNames({
    find: (account_id, name) => store.find(db, account_id, name),
    list: (account_id) => store.all(db, account_id),
  })

  models.onNeeded(async (trx, account_id, model_id) => {
    const deployment = await store.serving(trx, account_id, model_id)
    return deployment && `the deployment ${deployment.name}`
  })

  /** A model may have been deleted while it was compared and loaded. */
  async function stillThere(trx: Trx, account_id: string, model: string): Promise<void> {
    if (!inference.isBase(model)) await models.require(trx, account_id, model)
  }

  async function row(account_id: string, name: string) {
    const found = await store.find(db, account_id, name)
    if (!found) throw new ApiError('deployment_not_found', `There is no deployment '${name}'.`)
    return found
  }

  async function toWire(deployment: store.DeploymentRow): Promise<Deployment> {
    return {
      id: deployment.id,
      name: deployment.name,
      model: deployment.model,
      base_model_id: await inference.baseId(deployment.account_id, deployment.model),
      status: deployment.status,
      error: deployment.error_json ? JSON.parse(deployment.error_json) : null,
      replicas: 1,
      created_at: new Date(deployment.created_at).toISOString(),
      updated_at: new Date(deployment.updated_at).toISOString(),
    }
  }

  /**
   * Whether what is to be served is a base whose weights are yet to be downloaded, and may be. Throws why it cannot be
   * served where it is not.
   */
  async function awaitsWeights(by: By, model: string): Promise<boolean> {
    try {
      await inference.target(by.account_id, model)
      return false
    } catch (error) {
      if (
        error instanceof ApiError &&
        error.code === 'model_not_available' &&
        inference.isBase(model) &&
        (await downloads.needed(by, model))
      )
        return true
      throw error
    }
  }

  downloads.onChange(async (trx, model, { status, error }) => {
    if (!['completed', 'failed', 'cancelled'].includes(status)) return () => {}
    const waiting = (await store.starting(trx)).filter((deployment) => deployment.model === model)
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
      // A failure of the database leaves it starting, and the next start of the service settles it.
      for (const deployment of waiting) settle(deployment).catch(() => {})
    }
  })

  const deployed = (deployment: { id: string; name: string; model: string }) => ({
    deployment_id: deployment.id,
    name: deployment.name,
    model_id: deployment.model,
  })

  /** Loads what a deployment serves, so that its first request does not wait, and records how that went. */
  async function settle(deployment: store.DeploymentRow): Promise<void> {
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
        await recordEvent(trx, account_id, 'model.deployed', deployed(deployment), now())
    })
  }

  return {
    async create(by, { model, name }) {
      const { account_id } = by
      const taken = () =>
        new ApiError(
          'name_taken',
          `The name '${name}' is taken. Choose another, or PUT /v1/deployments/${name} to let it serve another model.`,
          {
            details: { name },
          },
        )
      if (inference.isBase(name)) throw taken()
      const awaits = await awaitsWeights(by, model)
      await inference.requireTrusted(account_id, model)
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
          await stillThere(trx, account_id, model)
          await store.insert(trx, deployment)
          await recordAct(trx, by, 'deployment.created', deployment.id, { name, model }, time)
          if (awaits) await downloads.request(trx, by, model)
        })
        inference.namesChanged()
      } catch (error) {
        if (/UNIQUE|duplicate key/i.test((error as Error).message)) throw taken()
        throw error
      }
      if (awaits) await downloads.started(model)
      else await settle(deployment)
      return toWire(await row(account_id, name))
    },

    async switch(by, name, model) {
      const { account_id } = by
      const deployment = await row(account_id, name)
      const target = await inference.target(account_id, model)
      await inference.requireTrusted(account_id, model)
      await inference.load(target)
      await db.transaction().execute(async (trx) => {
        await stillThere(trx, account_id, model)
        const updated = await store.update(trx, deployment.id, {
          model,
          status: 'ready',
          error_json: null,
          updated_at: now(),
        })
        if (updated.numUpdatedRows === 0n)
          throw new ApiError('deployment_not_found', `The deployment '${name}' was deleted in the meantime.`)
        await recordEvent(trx, account_id, 'model.deployed', deployed({ ...deployment, model }), now())
        await recordAct(
          trx,
          by,
          'deployment.switched',
          deployment.id,
          { name, from: deployment.model, to: model },
          now(),
        )
      })
      inference.namesChanged()
      return toWire(await row(account_id, name))
    },

    async list(account_id, query) {
      const { limit, after } = query
      const last = after ? await store.byId(db, account_id, after) : undefined
      if (after && !last)
        throw new ApiError('deployment_not_found', `There is no deployment '${after}' to go on after.`)
      const rows = await store.list(db, account_id, query, last)
      return { items: await Promise.all(rows.slice(0, limit).map(toWire)), has_more: rows.length > limit }
    },

    async recover() {
      for (const deployment of await store.starting(db))
        if (!downloads.isLive(deployment.model)) await settle(deployment)
    },

    get: async (account_id, name) => toWire(await row(account_id, name)),

    async delete(by, name) {
      const { id, model } = await row(by.account_id, name)
      await db.transaction().execute(async (trx) => {
        const removed = await store.remove(trx, id)
        if (removed.numDeletedRows > 0n) await recordAct(trx, by, 'deployment.deleted', id, { name, model }, now())
      })
      inference.namesChanged()
      return { id, deleted: true }
    },
  }
}

// Resolves the `model` field of a request to a target, with a short cache.

import { ApiError } from '../../../contract/errors.ts'
import type { TrainedWith } from '../../../contract/models.ts'
import { createTtlCache } from '../../../lib/ttl-cache.ts'
import { type Changes, cacheTtl_ms } from '../../platform/redis/changes.ts'
import { chatTemplateHash, type Hub } from '../hub/index.ts'
import type { ServableModel, TunedModels } from '../models/index.ts'
import type { Pools, Target } from '../serving/index.ts'

/** Names for models that another feature defines. It announces changes. */
export interface ModelAliases {
  find(account_id: string, name: string): Promise<{ id: string; model: string } | undefined>
  list(account_id: string): Promise<{ id: string; name: string; model: string; created_at: number }[]>
}

export interface Resolved {
  /** The id of the model behind the name. */
  model_id: string
  /** The base that it was tuned from, which determines the price. */
  base_model_id: string
  target: Target
  /** The deployment, if the name is one. */
  deployment_id?: string
  /** What a tuned model was trained with, if that is known, and whether its chat template is another now. */
  trained?: { with: TrainedWith; template_differs: boolean }
}

export interface Resolver {
  /**
   * Looks up a deployment of the account, a tuned model of the account (by id or `ft:` name), a base, or a name that
   * the operator maps to one, in this order. Throws
   * model_not_found, model_not_available or model_not_callable.
   */
  resolve(account_id: string, name: string): Promise<Resolved> | Resolved
  /** The target of a model id, ignoring deployments. */
  target(account_id: string, model: string): Promise<Target>
  targetOf(tuned: ServableModel): Target
  isBase(model: string): boolean
}

interface Needs {
  hub: Hub
  models: TunedModels
  pools: Pools
  changes: Changes
  aliases: ModelAliases
}

export function createResolver({ hub, models, pools, changes, aliases }: Needs): Resolver {
  const cache = createTtlCache<Resolved>(cacheTtl_ms)
  changes.onAnnounced(cache.clear)

  function base(id: string): Target['base'] {
    const { gguf, projector } = (pools.hasUpstream(id) ? hub.localOrUndefined(id) : hub.local(id)) ?? {}
    return { id, ...(gguf && { gguf }), ...(projector && { projector }) }
  }

  const targetOf = (tuned: ServableModel): Target => {
    if (tuned.kind === 'model') return { base: { id: tuned.id, gguf: tuned.gguf, projector: tuned.projector } }
    const { id, gguf, projector = null } = tuned
    return { base: tuned.parent ?? base(tuned.base_model_id), adapter: { id, gguf, projector } }
  }

  /** An adapter is asked with the template of its base, which may have been added again since. */
  function trainingOf({ kind, parent, base_model_id, trained_with }: ServableModel): Resolved['trained'] {
    if (!trained_with) return undefined
    const hf = kind === 'model' || parent ? null : hub.localOrUndefined(base_model_id)?.hf
    const hash = hf ? chatTemplateHash(hf) : undefined
    return { with: trained_with, template_differs: hash !== undefined && hash !== trained_with.chat_template_sha256 }
  }

  const isBase = (model: string) => pools.hasUpstream(model) || hub.has(model)

  async function resolve(account_id: string, model: string): Promise<Omit<Resolved, 'model_id' | 'deployment_id'>> {
    const tuned = await models.find(account_id, model)
    if (!tuned && !isBase(model))
      throw new ApiError(
        'model_not_found',
        `There is no model or deployment '${model}'. GET /v1/models lists what you can call.`,
        { param: 'model' },
      )
    const target = tuned ? targetOf(tuned) : { base: base(model) }
    pools.requireServable(target)
    const trained = tuned && trainingOf(tuned)
    return { base_model_id: tuned?.base_model_id ?? model, target, ...(trained && { trained }) }
  }

  return {
    target: async (account_id, model) => (await resolve(account_id, model)).target,
    targetOf,
    isBase,
    resolve: (account_id, name) =>
      cache.getOrLoad(
        `${account_id}\n${name}`,
        async () => {
          const alias = await aliases.find(account_id, name)
          const model_id = alias?.model ?? (await models.idOf(account_id, name)) ?? hub.mapped(name)
          return { model_id, ...(await resolve(account_id, model_id)), ...(alias && { deployment_id: alias.id }) }
        },
        changes.version(account_id),
      ) as Promise<Resolved> | Resolved,
  }
}

// From the `model` field of a request to what it runs on.
import { ApiError } from '../../../contract/errors.ts'
import { createShortCache } from '../../../lib/ttl-cache.ts'
import type { ServableModel, TunedModels } from '../../fine-tuning/models/registry.ts'
import type { Hub } from '../../hub/service.ts'
import type { Pools } from '../replicas/pools.ts'
import type { Target } from '../replicas/replica.ts'

/**
 * The names that another feature gives to models; deployments registers itself here, and tells when they have changed.
 */
export interface Names {
  find(account_id: string, name: string): Promise<{ model: string } | undefined>
  list(account_id: string): Promise<{ name: string; model: string; created_at: number }[]>
}

export interface Resolved {
  /** The id of the model that the name stands for. */
  model_id: string
  /** The base that it stands on, or was made from: what it costs goes by that. */
  base_model_id: string
  target: Target
}

export interface Resolver {
  /**
   * Of a deployment of the account, a tuned model of the account, or a base, in this order. Throws model_not_found or
   * model_not_available.
   */
  resolve(account_id: string, name: string): Promise<Resolved> | Resolved
  /** What a model id stands for, names aside. */
  target(account_id: string, model: string): Promise<Target>
  targetOf(tuned: ServableModel): Target
  isBase(model: string): boolean
  names(): Names | undefined
  useNames(names: Names): void
  /** What names or ids stand for has changed: the next request sees it. */
  changed(): void
}

/** Another process may add or remove the files of a base. */
const kept_ms = 500

export function createResolver({ hub, models, pools }: { hub: Hub; models: TunedModels; pools: Pools }): Resolver {
  let names: Names | undefined
  const known = createShortCache<Resolved>(kept_ms)
  models.onDeleted(() => known.clear())

  function base(id: string): Target['base'] {
    const { gguf } = (pools.hasUpstream(id) ? hub.localOrUndefined(id) : hub.local(id)) ?? {}
    return { id, ...(gguf && { gguf }) }
  }

  const targetOf = (tuned: ServableModel): Target => {
    if (tuned.kind === 'model') return { base: { id: tuned.id, gguf: tuned.gguf } }
    return { base: tuned.parent ?? base(tuned.base_model_id), adapter: { id: tuned.id, gguf: tuned.gguf } }
  }

  const isBase = (model: string) => pools.hasUpstream(model) || hub.has(model)

  async function resolve(account_id: string, model: string): Promise<Omit<Resolved, 'model_id'>> {
    const tuned = await models.find(account_id, model)
    if (!tuned && !isBase(model))
      throw new ApiError(
        'model_not_found',
        `There is no model or deployment '${model}'. GET /v1/models lists those that can be called.`,
        { param: 'model' },
      )
    const found = tuned ? targetOf(tuned) : { base: base(model) }
    pools.requireServable(found)
    return { base_model_id: tuned?.base_model_id ?? model, target: found }
  }

  return {
    target: async (account_id, model) => (await resolve(account_id, model)).target,
    targetOf,
    isBase,
    names: () => names,
    useNames: (given) => {
      names = given
    },
    changed: known.clear,
    resolve: (account_id, name) =>
      known.find(`${account_id}\n${name}`, async () => {
        const model_id = (await names?.find(account_id, name))?.model ?? name
        return { model_id, ...(await resolve(account_id, model_id)) }
      }) as Promise<Resolved> | Resolved,
  }
}

// What Ray Serve runs for a deployment: one application for each model that the deployment serves, so that
// the former one answers until the next one runs.

import { createHash } from 'node:crypto'
import { parseDuration } from '../../../../contract/scaling.ts'
import { headerText } from '../../../../lib/header-text.ts'
import { type Application, ownPrefix, routeOf } from '../../../platform/ray/applications.ts'
import { engineApplication, type ServedFile } from '../../../platform/ray/engine-application.ts'
import { vllmApplication, vllmName } from '../../../platform/ray/vllm-application.ts'
import type { Secrets } from '../../../platform/storage/secrets.ts'
import { type RemoteRoute, shownHash, type Target } from '../../serving/index.ts'
import type { ScaledDeployment } from '../scaled-deployment.ts'
import { gpuOf } from './instance-types.ts'
import type { TargetFile, TargetFiles } from './target-files.ts'

/** The application that serves a target, and the way to it. */
export interface ServedAt {
  name: string
  route: RemoteRoute
}

type Placed = Pick<ScaledDeployment, 'id' | 'instance_type'>

export interface Applications {
  /** Beginning of the names of all applications of a deployment. */
  prefixOf(deployment_id: string): string
  /** Beginning of the names of all applications of this installation. */
  prefix: string
  /** Throws an ApiError if the target's files are not here. */
  whereIs(deployment: Placed, target: Target): Promise<ServedAt>
  filesToken(deployment_id: string, model: string): string
  describe(deployment: ScaledDeployment, target: Target): Promise<ServedAt & { application: Application }>
}

interface Options {
  installation: string
  files: TargetFiles
  secrets: Pick<Secrets, 'derive'>
  /** Bring the code of replicas into the cluster. */
  engineCode: () => Promise<string>
  vllmCode: () => Promise<string>
  vllmConfig: Record<string, unknown>
  serviceUrl: () => string
  cores: number
  node: string
  now: () => number
}

export function createApplications(options: Options): Applications {
  const { installation, files, secrets, engineCode, vllmCode, vllmConfig, serviceUrl, cores, node, now } = options
  const prefix = `${ownPrefix}${installation}-`
  const prefixOf = (deployment_id: string) => `${prefix}${deployment_id.replaceAll('_', '-')}-`

  /**
   * `weights`: base and adapter with their hashes. `what`: all that needs another application where it differs.
   * `projector`: the hash of that which the model reads pictures with.
   */
  function locate(
    deployment_id: string,
    weights: { id: string; sha256: string }[],
    what: unknown,
    projector?: string,
  ): ServedAt {
    const hash = createHash('sha256').update(JSON.stringify(what))
    const name = `${prefixOf(deployment_id)}${hash.digest('hex').slice(0, 12)}`
    const [base, adapter] = weights.map(({ id, sha256 }) => `${headerText(id)} ${shownHash(sha256)}`)
    const sight = projector === undefined ? '' : `; projector=${shownHash(projector)}`
    const route = {
      path: routeOf(name.slice(ownPrefix.length)),
      token: secrets.derive(`requests to ${name}`),
      weights: `base=${base}${sight}${adapter ? `; adapter=${adapter}` : ''}`,
    }
    return { name, route: { ...route, server: 'engine' } }
  }

  async function locateEngine(deployment_id: string, target: Target) {
    const served = await files.forEngine(target)
    const { base, projector, adapter, own_projector } = served
    const weights = adapter ? [base, adapter] : [base]
    const sights = [projector, own_projector].filter((sight) => sight !== undefined)
    const what = [...weights, ...sights].map(({ id, sha256 }) => [id, sha256])
    return { served, at: locate(deployment_id, weights, what, (own_projector ?? projector)?.sha256) }
  }

  async function locateVllm(deployment_id: string, target: Target, gpu: string) {
    const served = await files.forVllm(target)
    const weights = served.weights.map(({ id, sha256 }) => [id, sha256])
    const { name, route } = locate(deployment_id, served.weights, ['vllm', gpu, weights, vllmConfig])
    return { served, at: { name, route: { ...route, server: 'vllm' as const, model: vllmName(!!target.adapter) } } }
  }

  const filesToken = (deployment_id: string, model: string) =>
    secrets.derive(`files of ${deployment_id} for replicas of ${model}`)

  return {
    prefix,
    prefixOf,
    filesToken,

    async whereIs({ id, instance_type }, target) {
      const gpu = gpuOf(instance_type)
      return (await (gpu === undefined ? locateEngine(id, target) : locateVllm(id, target, gpu))).at
    },

    async describe({ id: deployment_id, policy, instance_type }, target) {
      const model = (target.adapter ?? target.base).id
      const service = {
        url: `${serviceUrl()}/internal/replicas/${deployment_id}/${encodeURIComponent(model)}`,
        token: filesToken(deployment_id, model),
      }
      const common = {
        policy: {
          min_replicas: policy.min_replicas,
          max_replicas: policy.max_replicas,
          target_requests_per_replica: policy.target_requests_per_replica,
          scale_up_cooldown_ms: parseDuration(policy.scale_up_cooldown),
          scale_down_cooldown_ms: parseDuration(policy.scale_down_cooldown),
        },
        written_at: now(),
      }
      const gpu = gpuOf(instance_type)
      if (gpu !== undefined) {
        const { at, served } = await locateVllm(deployment_id, target, gpu)
        const application = vllmApplication({
          ...common,
          id: at.name.slice(ownPrefix.length),
          working_dir: await vllmCode(),
          service,
          files: served.files.map(({ path, sha256, size_bytes, cache }) => ({ path, sha256, size_bytes, cache })),
          lora_rank: served.lora_rank,
          accelerator_type: gpu === 'any' ? undefined : gpu,
          overrides: vllmConfig,
          token: at.route.token,
          weights: at.route.weights,
        })
        return { ...at, application }
      }
      const { at, served } = await locateEngine(deployment_id, target)
      const fetched = ({ id, sha256 }: TargetFile): ServedFile => ({
        name: id,
        url: `${service.url}/files/${sha256}`,
        sha256,
      })
      const { base, projector, adapter, own_projector } = served
      const application = engineApplication({
        ...common,
        id: at.name.slice(ownPrefix.length),
        working_dir: await engineCode(),
        base: fetched(base),
        ...(projector && { projector: fetched(projector) }),
        adapters: adapter ? [{ ...fetched(adapter), ...(own_projector && { projector: fetched(own_projector) }) }] : [],
        cores,
        node,
        token: at.route.token,
        files_token: service.token,
        weights: at.route.weights,
        service_url: service.url,
      })
      return { ...at, application }
    },
  }
}

/** When an application was first written; the same stays in what it is compared with. */
export const writtenAt = (config: Record<string, unknown> | undefined): number =>
  Number((config?.args as { written_at?: unknown } | undefined)?.written_at ?? 0)

export const withWrittenAt = (application: Application, written_at: number): Application => ({
  ...application,
  args: { ...(application.args as object), written_at },
})

/** Whether all that `wanted` says is in `existing`, which may have more: Serve may add defaults. */
export function contains(existing: unknown, expected: unknown): boolean {
  if (typeof expected !== 'object' || expected === null) return Object.is(existing, expected)
  if (typeof existing !== 'object' || existing === null) return false
  if (Array.isArray(expected) && (!Array.isArray(existing) || existing.length !== expected.length)) return false
  const has = existing as Record<string, unknown>
  return Object.entries(expected).every(([key, value]) => value === undefined || contains(has[key], value))
}

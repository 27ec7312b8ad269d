// What Ray Serve is told to run for a deployment: one application for each model that the deployment serves, so that the
// former one answers until the next one runs.
import { createHash } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { ApiError } from '../../../contract/errors.ts'
import { parseDuration } from '../../../contract/scaling.ts'
import { headerText } from '../../../lib/header-text.ts'
import type { TunedModels } from '../../fine-tuning/index.ts'
import type { RemoteRoute, Target } from '../../inference/index.ts'
import { type Application, ownPrefix } from '../../ray/applications.ts'
import { engineApplication, routeOf, type ServedFile } from '../../ray/engine-application.ts'
import { hashFile } from '../../storage/durable-files.ts'
import type { Artifacts } from '../../storage/objects/index.ts'
import type { Secrets } from '../../storage/secrets.ts'
import type { ScaledDeployment } from '../controller.ts'

/** Hex digits of a hash in the header x-weights. */
const shownDigits = 16

/** Files of a target, each with the hash that it must have. */
export interface TargetFile {
  id: string
  path: string
  sha256: string
}

/** The application that serves a target, and the way to it. */
export interface ServedAt {
  name: string
  route: RemoteRoute
}

export interface Applications {
  /** Beginning of the names of all applications of a deployment. */
  prefixOf(deployment_id: string): string
  /** Beginning of the names of all applications of this installation. */
  prefix: string
  whereIs(deployment_id: string, target: Target): Promise<ServedAt>
  filesOf(target: Target): Promise<TargetFile[]>
  filesToken(deployment_id: string, model: string): string
  describe(deployment: ScaledDeployment, target: Target): Promise<ServedAt & { application: Application }>
}

interface Options {
  installation: string
  models: Pick<TunedModels, 'expected'>
  artifacts: Pick<Artifacts, 'ensureLocal'>
  secrets: Pick<Secrets, 'derive'>
  /** Brings the engine's code into the cluster. */
  engineCode: () => Promise<string>
  serviceUrl: () => string
  cores: number
  node: string
  now: () => number
}

export function createApplications(options: Options): Applications {
  const { installation, models, artifacts, secrets, engineCode, serviceUrl, cores, node, now } = options
  const prefix = `${ownPrefix}${installation}-`
  const known = new Map<string, Promise<string>>()

  async function hashOf(file: string): Promise<string> {
    const { size, mtimeMs } = await stat(await artifacts.ensureLocal(file))
    const stamp = `${file}\0${size}\0${mtimeMs}`
    const hash = known.get(stamp) ?? hashFile(file)
    known.set(stamp, hash)
    hash.catch(() => known.delete(stamp))
    return hash
  }

  const fileOf = async ({ id, gguf }: { id: string; gguf: string }): Promise<TargetFile> => ({
    id,
    path: gguf,
    sha256: (await models.expected(id))?.sha256 ?? (await hashOf(gguf)),
  })

  async function filesOf({ base, adapter }: Target): Promise<TargetFile[]> {
    if (base.gguf === undefined)
      throw new ApiError('model_not_callable', `The weights of '${base.id}' are not with this service.`)
    const files = [await fileOf({ id: base.id, gguf: base.gguf })]
    return adapter ? [...files, await fileOf(adapter)] : files
  }

  const prefixOf = (deployment_id: string) => `${prefix}${deployment_id.replaceAll('_', '-')}-`
  function locate(deployment_id: string, files: TargetFile[]): ServedAt {
    const hash = createHash('sha256').update(JSON.stringify(files.map(({ id, sha256 }) => [id, sha256])))
    const name = `${prefixOf(deployment_id)}${hash.digest('hex').slice(0, 12)}`
    const shown = ({ id, sha256 }: TargetFile) => `${headerText(id)} sha256:${sha256.slice(0, shownDigits)}`
    const [base, adapter] = files
    const weights = `base=${shown(base!)}${adapter ? `; adapter=${shown(adapter)}` : ''}`
    const token = secrets.derive(`requests to ${name}`)
    return { name, route: { path: routeOf(name.slice(ownPrefix.length)), token, weights } }
  }
  const filesToken = (deployment_id: string, model: string) =>
    secrets.derive(`files of ${deployment_id} for replicas of ${model}`)

  return {
    prefix,
    prefixOf,
    filesOf,
    filesToken,
    whereIs: async (deployment_id, target) => locate(deployment_id, await filesOf(target)),

    async describe({ id: deployment_id, policy }, target) {
      const files = await filesOf(target)
      const [base, adapter] = files
      const model = (adapter ?? base)!.id
      const at = locate(deployment_id, files)
      const { name, route } = at
      const served = ({ id, sha256 }: TargetFile): ServedFile => ({
        name: id,
        url: `${serviceUrl()}/internal/replicas/${deployment_id}/${encodeURIComponent(model)}/files/${sha256}`,
        sha256,
      })
      const application = engineApplication({
        id: name.slice(ownPrefix.length),
        working_dir: await engineCode(),
        base: served(base!),
        adapters: adapter ? [served(adapter)] : [],
        policy: {
          min_replicas: policy.min_replicas,
          max_replicas: policy.max_replicas,
          target_requests_per_replica: policy.target_requests_per_replica,
          scale_up_cooldown_ms: parseDuration(policy.scale_up_cooldown),
          scale_down_cooldown_ms: parseDuration(policy.scale_down_cooldown),
        },
        cores,
        node,
        token: route.token,
        files_token: filesToken(deployment_id, model),
        weights: route.weights,
        written_at: now(),
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
export function contains(existing: unknown, wanted: unknown): boolean {
  if (typeof wanted !== 'object' || wanted === null) return Object.is(existing, wanted)
  if (typeof existing !== 'object' || existing === null) return false
  if (Array.isArray(wanted) && (!Array.isArray(existing) || existing.length !== wanted.length)) return false
  const has = existing as Record<string, unknown>
  return Object.entries(wanted).every(([key, value]) => value === undefined || contains(has[key], value))
}

// The ids and paths of Tinker's API, which its clients take apart.
import { ApiError } from '../../../contract/errors.ts'

export const runIdOf = (session_id: string, model_seq_id: number) => `${session_id}:train:${model_seq_id}`
export const samplerIdOf = (session_id: string, seq_id: number) => `${session_id}:sample:${seq_id}`

export type CheckpointKind = 'training' | 'sampler' | 'external'

const segments = { training: 'weights', sampler: 'sampler_weights', external: 'external_weights' } as const

/** The path of a checkpoint: `tinker://RUN/weights/NAME`. */
export const tinkerPath = (run_id: string, kind: CheckpointKind, name: string) =>
  `tinker://${run_id}/${segments[kind]}/${name}`

/** The id of a checkpoint within its run: `weights/NAME`. */
export const checkpointId = (kind: CheckpointKind, name: string) => `${segments[kind]}/${name}`

export interface CheckpointPath {
  run_id: string
  kind: CheckpointKind
  name: string
}

/** Takes a path apart. Throws invalid_request. */
export function parsePath(path: string): CheckpointPath {
  const [, run_id, segment, name] = /^tinker:\/\/([^/]{1,200})\/([a-z_]+)\/([^/]{1,200})$/.exec(path) ?? []
  const kind = Object.entries(segments).find(([, own]) => own === segment)?.[0]
  if (!run_id || !name || !kind)
    throw new ApiError(
      'invalid_request',
      `'${path.slice(0, 200)}' is not the path of a checkpoint: tinker://RUN/weights/NAME or ` +
        'tinker://RUN/sampler_weights/NAME.',
    )
  return { run_id, kind: kind as CheckpointKind, name }
}

/** Takes an id within a run apart. Throws not_found. */
export function parseCheckpointId(run_id: string, id: string): CheckpointPath {
  try {
    return parsePath(`tinker://${run_id}/${id}`)
  } catch {
    throw checkpointNotFound(`tinker://${run_id}/${id}`)
  }
}

export const checkpointNotFound = (path: string): ApiError =>
  new ApiError(
    'not_found',
    `There is no checkpoint '${path.slice(0, 300)}'. It was deleted, has expired, or is of another account.`,
  )

const namePattern = /^[\w.-]{1,128}$/

/** Throws invalid_request for a name that a checkpoint cannot have. */
export function requireName(name: string): string {
  if (!namePattern.test(name) || name === '.' || name === '..')
    throw new ApiError(
      'invalid_request',
      `'${name.slice(0, 200)}' cannot be the name of a checkpoint: use 1 to 128 letters, digits, '.', '_' and '-'.`,
    )
  return name
}

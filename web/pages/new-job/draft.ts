// What was chosen so far: kept through a refresh, and turned into the request.
import { useCallback, useState } from 'react'
import { randomId } from '../../../sdk/http.ts'
import type { CreateJobInput, GraderInput, Job } from '../../../sdk/index.ts'
import { type GraderDraft, graderDraftOf, graderOf, newDraft } from '../../parts/graders.tsx'
import { type GroupName, groupNames, isFor, type Objective, problemOf } from './fields.ts'
import { groups, method as methodInfo } from './generated/hyperparameters.ts'

export type Method = 'lora' | 'qlora' | 'full'

export interface Draft {
  model_id: string | null
  dataset_id: string | null
  method: Method
  /** Undefined: what the dataset's rows can teach first. */
  objective?: Objective | undefined
  /** Settings that differ from the default, by group and name. */
  values: Record<GroupName, Record<string, unknown>>
  /** What scores the answers, where that is what is learned from. */
  graders: GraderDraft[]
  /** Holds rows out for validation, where the dataset has enough and nothing else is set. */
  hold_out: boolean
  evaluation: string | null
  name: string
  description: string
  metadata: [name: string, value: string][]
}

export const emptyDraft = (): Draft => ({
  model_id: null,
  dataset_id: null,
  method: 'lora',
  values: { method_options: {}, lora_config: {}, training_config: {}, evaluation_config: {} },
  graders: [newDraft()],
  hold_out: true,
  evaluation: null,
  name: '',
  description: '',
  metadata: [],
})

/** The settings of a job, to begin with. */
export function draftOf(job: Job): Draft {
  const { method = 'lora', ...config } = job.config
  const { objective, grader, graders, ...method_options } = config.method_options ?? {}
  const given = (grader ? [grader] : graders) as GraderInput[] | undefined
  return {
    ...emptyDraft(),
    model_id: job.model_id,
    dataset_id: job.dataset_id,
    method,
    ...(objective && { objective }),
    values: {
      method_options,
      lora_config: { ...config.lora_config },
      training_config: { ...config.training_config },
      evaluation_config: { ...config.evaluation_config },
    },
    ...(given && { graders: given.map(graderDraftOf) }),
    // A clone trains as its job did.
    hold_out: false,
    evaluation: job.evaluation,
    description: job.description,
    metadata: Object.entries(job.metadata),
  }
}

const key = 'tunery.new-job'

/**
 * The draft of this tab: it survives leaving the page. `from` is what the address begins it with: one that chooses
 * something else begins another draft, and one that chooses nothing continues the last one. The third value says
 * whether a draft was continued.
 */
export function useDraft(from: string, first: () => Draft) {
  const [begun] = useState<{ draft: Draft; continued: boolean }>(() => {
    try {
      const kept = JSON.parse(sessionStorage.getItem(key) ?? 'null')
      if (kept?.from === from || (kept && from === '{}'))
        return { draft: { ...emptyDraft(), ...kept.draft }, continued: true }
    } catch {
      // Begin again.
    }
    return { draft: first(), continued: false }
  })
  const [draft, setDraft] = useState(begun.draft)
  const change = useCallback(
    (changes: Partial<Draft>) =>
      setDraft((old) => {
        const next = { ...old, ...changes }
        try {
          sessionStorage.setItem(key, JSON.stringify({ from, draft: next }))
        } catch {
          // Storage may be refused: the draft then lasts as long as the page.
        }
        return next
      }),
    [from],
  )
  return [draft, change, begun.continued] as const
}

const sentKey = 'tunery.new-job.sent'

/** The idempotency key of a draft that is sent. A reload meanwhile leaves the draft: sent again it is the same job. */
export function keyOf(request: CreateJobInput): string {
  const body = JSON.stringify(request)
  try {
    const sent = JSON.parse(sessionStorage.getItem(sentKey) ?? 'null')
    if (sent?.body === body) return sent.key
    const key = randomId()
    sessionStorage.setItem(sentKey, JSON.stringify({ body, key }))
    return key
  } catch {
    return randomId()
  }
}

export function forgetDraft(): void {
  sessionStorage.removeItem(key)
  sessionStorage.removeItem(sentKey)
}

const isSet = (value: unknown): boolean =>
  value !== undefined && value !== null && value !== '' && !(Array.isArray(value) && value.length === 0)

/** Settings without effect where answers are scored instead of learned. */
const notForGraders = new Set(['max_length', 'sample_prompts', 'keep_checkpoints'])

/** The settings of a group that count for this method and objective. */
export const entriesFor = (group: GroupName, method: Method, objective: Objective) =>
  group === 'lora_config' && method === 'full'
    ? []
    : groups
        .find(({ name }) => name === group)!
        .entries.filter(
          (info) =>
            info.name !== 'objective' &&
            isFor(info, objective) &&
            !(objective === 'reinforcement' && notForGraders.has(info.name)),
        )

/** Settings of graders that stand beside them. */
export const besideGraders = ['group_size', 'max_tokens']

/** The settings that are under Advanced. */
export const advancedFor = (group: GroupName, method: Method, objective: Objective) =>
  entriesFor(group, method, objective).filter(({ name }) => !besideGraders.includes(name))

/** How many settings under Advanced differ from the default. */
export const changedIn = (draft: Draft, group: GroupName, objective: Objective): number =>
  advancedFor(group, draft.method, objective).filter(({ name }) => isSet(draft.values[group][name])).length

export const gradersPath = 'config.method_options.graders'

/** The graders as they are sent; or what is wrong with one. */
function gradersOf({ graders }: Draft): GraderInput[] | { problem: string } {
  try {
    return graders.map(graderOf)
  } catch (error) {
    return { problem: (error as Error).message }
  }
}

/** What is wrong with the settings, by their path in the request. */
export function problemsOf(draft: Draft, objective: Objective): Map<string, string> {
  const found = new Map<string, string>()
  for (const group of groupNames)
    for (const info of entriesFor(group, draft.method, objective)) {
      const problem = problemOf(info, draft.values[group][info.name] ?? undefined)
      if (problem) found.set(`config.${group}.${info.name}`, problem)
    }
  const graders = objective === 'reinforcement' ? gradersOf(draft) : []
  if (!Array.isArray(graders)) found.set(gradersPath, graders.problem)
  return found
}

/** The share of rows that is held out unless something else is set, and the rows of which that is one. */
export const heldOutShare = 0.1
const heldOutRows_min = 10
export const heldOutOf = (rows: number): number => Math.max(1, Math.round(rows * heldOutShare))

/** Whether rows are held out by default: some are left to train on, and nothing else is validated on. */
export const canHoldOut = ({ values: { evaluation_config } }: Draft, rows: number | undefined): boolean =>
  rows !== undefined &&
  rows >= heldOutRows_min &&
  !isSet(evaluation_config.validation_split) &&
  !isSet(evaluation_config.validation_dataset_id)

/** The request, with what differs from the defaults alone. `rows`: of the dataset, where they are known. */
export function requestOf(draft: Draft, objective: Objective, rows?: number): CreateJobInput {
  const config: Record<string, unknown> = draft.method === methodInfo.default ? {} : { method: draft.method }
  for (const group of groupNames) {
    const values = Object.fromEntries(
      entriesFor(group, draft.method, objective).flatMap(({ name }) => {
        const value = draft.values[group][name]
        return isSet(value) ? [[name, value]] : []
      }),
    )
    if (group === 'method_options' && objective !== 'sft') values.objective = objective
    if (group === 'method_options' && objective === 'reinforcement') {
      const graders = gradersOf(draft)
      if (Array.isArray(graders)) values.graders = graders
    }
    if (group === 'evaluation_config' && draft.hold_out && canHoldOut(draft, rows))
      values.validation_split = heldOutShare
    if (Object.keys(values).length > 0) config[group] = values
  }
  const metadata = Object.fromEntries(draft.metadata.filter(([name]) => name.trim() !== ''))
  return {
    model_id: draft.model_id ?? '',
    dataset_id: draft.dataset_id ?? '',
    config: config as CreateJobInput['config'],
    ...(draft.evaluation && { evaluation: draft.evaluation }),
    ...(draft.name.trim() && { name: draft.name.trim() }),
    ...(draft.description && { description: draft.description }),
    ...(Object.keys(metadata).length > 0 && { metadata }),
  }
}

// The form of a new job: its draft, what can be chosen, what is wrong with it, and its creation.
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { useMemo, useState } from 'react'
import type { CreateJobInput, Dataset, Job } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { unusable } from '../../lib/datasets.ts'
import { fieldError } from '../../lib/errors.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { firstProblem } from '../../ui/field.tsx'
import { type Draft, draftOf, emptyDraft, forgetDraft, keyOf, problemsOf, requestOf, useDraft } from './draft.ts'
import { useEstimate } from './estimate.tsx'
import type { Objective } from './fields.ts'

/** What can be chosen. */
function useChoices(draft: Draft) {
  const mayEvaluate = useMay('tuning:read')
  const bases = useQuery({ queryKey: ['hub', 'list'], queryFn: ({ signal }) => tunery.hub.list({}, { signal }) })
  const tuned = useQuery({
    queryKey: ['models', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.models.list({ limit: 100 }, { signal }),
  })
  const datasets = useQuery({
    queryKey: ['datasets', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.datasets.list({ limit: 100 }, { signal }),
  })
  const evaluations = useQuery({
    queryKey: ['evaluations', 'list', { limit: 100 }],
    queryFn: ({ signal }) => tunery.evaluations.list({ limit: 100 }, { signal }),
    enabled: mayEvaluate,
  })
  const { dataset_id } = draft
  const dataset = useQuery({
    queryKey: ['datasets', dataset_id],
    queryFn: ({ signal }) => tunery.datasets.get(dataset_id!, { signal }),
    enabled: dataset_id !== null,
    refetchInterval: ({ state }) => (state.data?.status === 'preparing' ? refresh_ms : false),
  })
  return { bases, tuned, datasets, evaluations, dataset }
}

const readyFirst = (draft: Draft, objectives: readonly Objective[]): Objective =>
  draft.objective && (objectives.length === 0 || objectives.includes(draft.objective))
    ? draft.objective
    : (objectives[0] ?? 'sft')

export type Choices = ReturnType<typeof useChoices>

/** How many rows a dataset has, once it is read. */
export const rowsOf = (dataset: Dataset | undefined) => (dataset?.status === 'ready' ? dataset.rows : undefined)

/** `cloned`: the job whose settings it begins with. */
export function useForm(cloned: Job | undefined) {
  const search = useSearch({ from: '/shell/jobs/new' })
  const first = () => ({
    ...(cloned ? draftOf(cloned) : emptyDraft()),
    ...(search.dataset && { dataset_id: search.dataset }),
    ...(search.model && { model_id: search.model }),
  })
  const [draft, change, continued] = useDraft(JSON.stringify(search), first)
  /** Makes the fields again, also those that keep a text of their own. */
  const [round, setRound] = useState(0)
  const [tried, setTried] = useState(false)
  const choices = useChoices(draft)
  const { dataset } = choices
  const { model_id, base } = chosenModel(draft, choices)
  const objectives = dataset.data?.objectives ?? []
  const objective = readyFirst(draft, objectives)

  const problems = useMemo(() => problemsOf(draft, objective), [draft, objective])
  const complete = model_id !== null && draft.dataset_id !== null
  const request = requestOf({ ...draft, model_id }, objective, rowsOf(dataset.data))
  const isUsable = dataset.data !== undefined && !unusable(dataset.data)
  const estimate = useEstimate(complete && isUsable && problems.size === 0 ? request : undefined)
  const create = useCreate()
  const start = () => {
    setTried(true)
    const wrong = firstProblem()
    if (wrong) return wrong.focus()
    if (complete && problems.size === 0) create.mutate(request)
  }
  const startOver = () => {
    change(first())
    create.reset()
    setTried(false)
    setRound(round + 1)
  }
  /** What the page, the last try or the measuring found wrong at a field. */
  const errorOf = (path: string) =>
    problems.get(path) ??
    fieldError(create.error, path) ??
    (estimate.measuring ? undefined : fieldError(estimate.query.error, path))
  return {
    draft,
    change,
    /** Whether the draft is one that was left unfinished. */
    continued: continued && round === 0,
    round,
    tried,
    choices,
    model_id,
    base,
    objective,
    objectives,
    problems,
    complete,
    request,
    estimate,
    create,
    start,
    startOver,
    errorOf,
  }
}
export type JobForm = ReturnType<typeof useForm>

/** The model that is trained, by default the recommended base or one that is here; and its base. */
function chosenModel(draft: Draft, { bases, tuned }: Choices) {
  const all = bases.data?.models ?? []
  const available = all.filter(({ methods, weights }) => methods.length > 0 && weights.available)
  const model_id = draft.model_id ?? (available.find(({ recommended }) => recommended) ?? available[0])?.id ?? null
  const earlier = tuned.data?.items.find(({ id }) => id === model_id)
  return { model_id, base: all.find(({ id }) => id === (earlier?.base_model_id ?? model_id)) }
}

/** Creates the job, and leads to its page. */
function useCreate() {
  const navigate = useNavigate()
  const client = useQueryClient()
  return useMutation({
    mutationFn: (body: CreateJobInput) => tunery.jobs.create(body, { maxRetries: 2, idempotencyKey: keyOf(body) }),
    onSuccess: async (job) => {
      forgetDraft()
      client.setQueryData(['jobs', job.id], job)
      await client.invalidateQueries({ queryKey: ['jobs', 'list'] })
      await navigate({ to: '/jobs/$jobId', params: { jobId: job.id } })
    },
  })
}

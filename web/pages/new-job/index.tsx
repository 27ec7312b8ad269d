import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate, useSearch } from '@tanstack/react-router'
import { Play, Plus, RotateCcw, X } from 'lucide-react'
import { type ReactNode, useMemo, useRef, useState } from 'react'
import type { CreateJobInput, Dataset, Job } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { unusable } from '../../lib/datasets.ts'
import { fieldError } from '../../lib/errors.ts'
import { formatPercent, plural } from '../../lib/format.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button, IconButton, LinkButton } from '../../ui/button.tsx'
import { CodeTabs } from '../../ui/code.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { EmptyState, ErrorState, FormError, Notice, SkeletonLines } from '../../ui/feedback.tsx'
import { Field, Form, firstProblem, Input, Textarea } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Checkbox } from '../../ui/toggles.tsx'
import { Advanced, changedCount } from './advanced.tsx'
import { DataCard, EvaluationField, MethodCard, ModelCard } from './choose.tsx'
import {
  canHoldOut,
  type Draft,
  draftOf,
  emptyDraft,
  forgetDraft,
  heldOutOf,
  heldOutShare,
  keyOf,
  problemsOf,
  requestOf,
  useDraft,
} from './draft.ts'
import { EstimateCard, InvalidRows, useEstimate } from './estimate.tsx'
import type { Objective } from './fields.ts'
import { samplesOf } from './samples.ts'

const back = { to: '/jobs', label: 'Jobs' }

export default function NewJobPage() {
  const may = useMay('tuning:write')
  const { clone } = useSearch({ from: '/shell/jobs/new' })
  if (!may)
    return (
      <Page title="New job" back={back}>
        <Card>
          <EmptyState title="No permission to train" action={<LinkButton to="/jobs">All jobs</LinkButton>}>
            Ask an owner of the account for a role that can start jobs.
          </EmptyState>
        </Card>
      </Page>
    )
  return clone ? <Clone id={clone} /> : <NewJob />
}

/** Begins with the settings of an earlier job. */
function Clone({ id }: { id: string }) {
  const job = useQuery({ queryKey: ['jobs', id], queryFn: ({ signal }) => tunery.jobs.get(id, { signal }) })
  // Its first answer: later ones would change nothing of the settings.
  const first = useRef<Job>(undefined)
  first.current ??= job.data
  if (first.current) return <NewJob cloned={first.current} />
  return (
    <Page title="New job" back={back}>
      <Card>
        {job.isError ? <ErrorState error={job.error} retry={() => void job.refetch()} /> : <SkeletonLines lines={6} />}
      </Card>
    </Page>
  )
}

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

function NewJob({ cloned }: { cloned?: Job }) {
  const search = useSearch({ from: '/shell/jobs/new' })
  const navigate = useNavigate()
  const client = useQueryClient()
  const first = () => ({
    ...(cloned ? draftOf(cloned) : emptyDraft()),
    ...(search.dataset && { dataset_id: search.dataset }),
    ...(search.model && { model_id: search.model }),
  })
  const [draft, change, continued] = useDraft(JSON.stringify(search), first)
  /** Makes the fields again, also those that keep a text of their own. */
  const [round, setRound] = useState(0)
  const choices = useChoices(draft)
  const { bases, tuned, datasets, evaluations, dataset } = choices

  // The recommended base, or one that is here.
  const trainable = bases.data?.models.filter(({ methods }) => methods.length > 0) ?? []
  const available = trainable.filter(({ weights }) => weights.available)
  const model_id = draft.model_id ?? (available.find(({ recommended }) => recommended) ?? available[0])?.id ?? null
  const objectives = dataset.data?.objectives ?? []
  const objective = readyFirst(draft, objectives)
  const whole = { ...draft, model_id }
  const earlier = tuned.data?.items.find(({ id }) => id === model_id)
  const allowed = bases.data?.models.find(({ id }) => id === (earlier?.base_model_id ?? model_id))?.methods

  const problems = useMemo(() => problemsOf(draft, objective), [draft, objective])
  const complete = model_id !== null && draft.dataset_id !== null
  const rows = rowsOf(dataset.data)
  const request = requestOf(whole, objective, rows)
  const problem = dataset.data && unusable(dataset.data)
  const known = dataset.data !== undefined && !problem
  const estimate = useEstimate(complete && known && problems.size === 0 ? request : undefined)

  const create = useMutation({
    mutationFn: (body: CreateJobInput) => tunery.jobs.create(body, { maxRetries: 2, idempotencyKey: keyOf(body) }),
    onSuccess: async (job) => {
      forgetDraft()
      client.setQueryData(['jobs', job.id], job)
      await client.invalidateQueries({ queryKey: ['jobs', 'list'] })
      await navigate({ to: '/jobs/$jobId', params: { jobId: job.id } })
    },
  })
  const [tried, setTried] = useState(false)
  const start = () => {
    setTried(true)
    const wrong = firstProblem()
    if (wrong) return wrong.focus()
    if (complete && problems.size === 0) create.mutate(request)
  }
  /** What the page, the last try or the measuring found wrong at a field. */
  const errorOf = (path: string) =>
    problems.get(path) ??
    fieldError(create.error, path) ??
    (estimate.measuring ? undefined : fieldError(estimate.query.error, path))
  const changed = changedCount(draft, objective)

  return (
    <Page
      title="New job"
      back={back}
      description={
        cloned
          ? `Settings copied from “${cloned.name}”.`
          : 'Choose a model and data. Everything else has good defaults.'
      }
      actions={
        <Button
          variant="quiet"
          icon={<RotateCcw aria-hidden />}
          onClick={() => {
            change(first())
            create.reset()
            setTried(false)
            setRound(round + 1)
          }}
        >
          Start over
        </Button>
      }
    >
      {continued && round === 0 && (
        <div className="mb-4">
          <Notice tone="accent">Continuing your unfinished draft. Start over to discard it.</Notice>
        </div>
      )}
      <div className="grid items-start gap-5 lg:grid-cols-[minmax(0,1fr)_21rem]">
        <div key={round} className="grid min-w-0 gap-5">
          <ModelStep
            choices={choices}
            model_id={model_id}
            onChange={(next) => change({ model_id: next })}
            error={errorOf('model_id') ?? (tried && !model_id ? 'Choose a model.' : undefined)}
          />
          <DataStep
            choices={choices}
            draft={draft}
            change={change}
            error={
              errorOf('dataset_id') ??
              (dataset.isError ? dataset.error.message : undefined) ??
              (tried && !draft.dataset_id ? 'Choose a dataset.' : undefined)
            }
          />
          <MethodCard
            value={draft.method}
            onChange={(method) => change({ method })}
            allowed={allowed}
            objective={objective}
            objectives={objectives}
            onObjective={(next) => change({ objective: next })}
            error={errorOf('config.method') ?? errorOf('config.method_options.objective')}
          />
          <Card
            title="Advanced"
            description={
              changed > 0 ? `${plural(changed, 'setting')} changed.` : 'Optional. The defaults work for most jobs.'
            }
          >
            <Advanced
              draft={draft}
              objective={objective}
              change={change}
              datasets={withOne(datasets.data?.items ?? [], dataset.data)}
              context_length={
                bases.data?.models.find(({ id }) => id === (earlier?.base_model_id ?? model_id))?.context_length
              }
              errorOf={errorOf}
              estimate={estimate.isOld ? undefined : estimate.query.data}
            />
          </Card>
          <Card title="Name and evaluation">
            <Names
              draft={draft}
              change={change}
              errorOf={errorOf}
              evaluation={
                <EvaluationField
                  value={draft.evaluation}
                  onChange={(next) => change({ evaluation: next })}
                  evaluations={evaluations.data?.items ?? []}
                  error={errorOf('evaluation')}
                />
              }
            />
          </Card>
          <Card>
            <div className="pt-1.5">
              <Disclosure summary="View as code">
                <CodeTabs label="Language" samples={samplesOf(request)} />
              </Disclosure>
            </div>
          </Card>
        </div>
        <div className="min-w-0 lg:sticky lg:top-5">
          <EstimateCard estimate={estimate} datasetId={draft.dataset_id} ready={complete}>
            <Form onSubmit={start}>
              {problems.size > 0 && <Notice tone="bad">Fix {plural(problems.size, 'setting')} under Advanced.</Notice>}
              <FormError error={create.error} title="Could not start the job" />
              <Button
                variant="primary"
                type="submit"
                busy={create.isPending}
                disabled={problem !== undefined}
                icon={<Play aria-hidden />}
              >
                Start job
              </Button>
            </Form>
          </EstimateCard>
        </div>
      </div>
    </Page>
  )
}

type Choices = ReturnType<typeof useChoices>

function ModelStep({
  choices: { bases, tuned },
  model_id,
  onChange,
  error,
}: {
  choices: Choices
  model_id: string | null
  onChange: (model_id: string | null) => void
  error: string | undefined
}) {
  if (bases.isError)
    return (
      <Card title="1. Model">
        <ErrorState error={bases.error} retry={() => void bases.refetch()} />
      </Card>
    )
  return (
    <ModelCard
      value={model_id}
      onChange={onChange}
      bases={bases.data?.models ?? []}
      tuned={tuned.data?.items ?? []}
      error={error}
    />
  )
}

function DataStep({
  choices: { datasets, dataset },
  draft,
  change,
  error,
}: {
  choices: Choices
  draft: Draft
  change: (changes: Partial<Draft>) => void
  error: string | undefined
}) {
  if (datasets.isError)
    return (
      <Card title="2. Data">
        <ErrorState error={datasets.error} retry={() => void datasets.refetch()} />
      </Card>
    )
  const rows = rowsOf(dataset.data)
  const problem = dataset.data && unusable(dataset.data)
  return (
    <DataCard
      value={draft.dataset_id}
      onChange={(next) => change({ dataset_id: next, objective: undefined })}
      datasets={withOne(datasets.data?.items ?? [], dataset.data)}
      hasMore={datasets.data?.has_more ?? false}
      dataset={dataset.data}
      error={error}
    >
      {problem && dataset.data && (
        <InvalidRows count={dataset.data.error_count || undefined} datasetId={dataset.data.id} />
      )}
      {canHoldOut(draft, rows) && !problem && (
        <Checkbox
          label={`Hold out ${formatPercent(heldOutShare)} for validation`}
          help={`Measures the model on ${plural(heldOutOf(rows!), 'row')} it does not train on.`}
          checked={draft.hold_out}
          onChange={(hold_out) => change({ hold_out })}
        />
      )}
    </DataCard>
  )
}

/** How many rows a dataset has, once it is read. */
const rowsOf = (dataset: Dataset | undefined) => (dataset?.status === 'ready' ? dataset.rows : undefined)

/** The chosen one may be older than those that are listed. */
const withOne = <T extends { id: string }>(items: readonly T[], one: T | undefined): readonly T[] =>
  one && !items.some(({ id }) => id === one.id) ? [one, ...items] : items

const mostPairs = 16

function Names({
  draft,
  change,
  errorOf,
  evaluation,
}: {
  draft: Draft
  change: (changes: Partial<Draft>) => void
  errorOf: (path: string) => string | undefined
  evaluation: ReactNode
}) {
  const { metadata } = draft
  const setPair = (index: number, pair: [string, string]) => change({ metadata: metadata.with(index, pair) })
  return (
    <div className="grid gap-5">
      {evaluation}
      <div className="grid items-start gap-x-6 gap-y-5 sm:grid-cols-2">
        <Field
          label="Name"
          optional
          error={errorOf('name')}
          help="For the job and its model. Default: dataset and base name."
        >
          <Input value={draft.name} maxLength={200} onChange={({ target }) => change({ name: target.value })} />
        </Field>
        <Field label="Notes" optional error={errorOf('description')}>
          <Textarea
            rows={1}
            value={draft.description}
            maxLength={2000}
            onChange={({ target }) => change({ description: target.value })}
          />
        </Field>
      </div>
      <Disclosure quiet summary="Metadata" open={metadata.length > 0}>
        <div className="grid gap-2">
          {metadata.map(([name, value], index) => (
            <div key={index} className="flex gap-2">
              <Input
                aria-label={`Key ${index + 1}`}
                placeholder="Key"
                value={name}
                maxLength={64}
                onChange={({ target }) => setPair(index, [target.value, value])}
              />
              <Input
                aria-label={`Value ${index + 1}`}
                placeholder="Value"
                value={value}
                maxLength={512}
                onChange={({ target }) => setPair(index, [name, target.value])}
              />
              <IconButton
                label={`Remove pair ${index + 1}`}
                icon={<X aria-hidden />}
                onClick={() => change({ metadata: metadata.filter((_, each) => each !== index) })}
              />
            </div>
          ))}
          {errorOf('metadata') && <p className="text-sm text-bad">{errorOf('metadata')}</p>}
          {metadata.length < mostPairs && (
            <div>
              <Button
                size="sm"
                icon={<Plus aria-hidden />}
                onClick={() => change({ metadata: [...metadata, ['', '']] })}
              >
                Add metadata
              </Button>
            </div>
          )}
        </div>
      </Disclosure>
    </div>
  )
}

import { useQuery } from '@tanstack/react-query'
import { useSearch } from '@tanstack/react-router'
import { Play, Plus, RotateCcw, X } from 'lucide-react'
import { type ReactNode, useRef } from 'react'
import type { Job } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { unusable } from '../../lib/datasets.ts'
import { formatPercent, plural } from '../../lib/format.ts'
import { useMay } from '../../lib/session.ts'
import { Button, IconButton, LinkButton } from '../../ui/button.tsx'
import { CodeTabs } from '../../ui/code.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { EmptyState, ErrorState, FormError, Notice, SkeletonLines } from '../../ui/feedback.tsx'
import { Field, Form, Input, Textarea } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Checkbox } from '../../ui/toggles.tsx'
import { Advanced, changedCount } from './advanced.tsx'
import { DataCard, EvaluationField, MethodCard, ModelCard } from './choose.tsx'
import { canHoldOut, type Draft, gradersPath, heldOutOf, heldOutShare } from './draft.ts'
import { EstimateCard, InvalidRows } from './estimate.tsx'
import { type Choices, type JobForm, rowsOf, useForm } from './form.ts'
import { GradersCard } from './graders.tsx'
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

function NewJob({ cloned }: { cloned?: Job }) {
  const form = useForm(cloned)
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
        <Button variant="quiet" icon={<RotateCcw aria-hidden />} onClick={form.startOver}>
          Start over
        </Button>
      }
    >
      {form.continued && (
        <div className="mb-4">
          <Notice tone="accent">Continuing your unfinished draft. Start over to discard it.</Notice>
        </div>
      )}
      <div className="grid items-start gap-5 lg:grid-cols-[minmax(0,1fr)_21rem]">
        <div key={form.round} className="grid min-w-0 gap-5">
          <Steps form={form} />
          <Card>
            <div className="pt-1.5">
              <Disclosure summary="View as code">
                <CodeTabs label="Language" samples={samplesOf(form.request)} />
              </Disclosure>
            </div>
          </Card>
        </div>
        <div className="min-w-0 lg:sticky lg:top-5">
          <Start form={form} />
        </div>
      </div>
    </Page>
  )
}

function Steps({ form }: { form: JobForm }) {
  const { draft, change, choices, model_id, base, objective, objectives, tried, errorOf, estimate } = form
  const { datasets, evaluations, dataset } = choices
  const changed = changedCount(draft, objective)
  return (
    <>
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
        allowed={base?.methods}
        objective={objective}
        objectives={objectives}
        onObjective={(next) => change({ objective: next })}
        error={errorOf('config.method') ?? errorOf('config.method_options.objective')}
      />
      {objective === 'reinforcement' && (
        <GradersCard
          draft={draft}
          change={change}
          errorOf={errorOf}
          estimate={estimate.isOld ? undefined : estimate.query.data}
        />
      )}
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
          context_length={base?.context_length}
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
    </>
  )
}

/** What the job takes, and its start. */
function Start({ form }: { form: JobForm }) {
  const { estimate, draft, complete, problems, create, choices, start, objective } = form
  const { data } = choices.dataset
  const settings = [...problems.keys()].filter((path) => path !== gradersPath).length
  return (
    <EstimateCard
      estimate={estimate}
      datasetId={draft.dataset_id}
      ready={complete}
      isBound={objective === 'reinforcement'}
    >
      <Form onSubmit={start}>
        {problems.has(gradersPath) && <Notice tone="bad">Fix the graders.</Notice>}
        {settings > 0 && <Notice tone="bad">Fix {plural(settings, 'setting')}.</Notice>}
        <FormError error={create.error} title="Could not start the job" />
        <Button
          variant="primary"
          type="submit"
          busy={create.isPending}
          disabled={data !== undefined && unusable(data) !== undefined}
          icon={<Play aria-hidden />}
        >
          Start job
        </Button>
      </Form>
    </EstimateCard>
  )
}

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

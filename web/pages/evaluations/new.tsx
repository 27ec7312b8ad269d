import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { datasetChoice } from '../../lib/datasets.ts'
import { fieldError } from '../../lib/errors.ts'
import { plural } from '../../lib/format.ts'
import { type GraderDraft, GradersForm, graderOf, newDraft } from '../../parts/graders.tsx'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { FormError, Notice } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, NameField, NumberInput } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { Checkbox } from '../../ui/toggles.tsx'

const fields = ['model', 'baseline', 'dataset', 'name', 'rows']

interface Settings {
  model: string | null
  baseline: string | null
  dataset: string | null
  rows: number | null
  maxTokens: number | null
  temperature: number | null
  name: string
  heldOutOnly: boolean
}

const defaults: Settings = {
  model: null,
  baseline: null,
  dataset: null,
  rows: 100,
  maxTokens: 512,
  temperature: 0,
  name: '',
  heldOutOnly: true,
}

interface PartProps {
  settings: Settings
  set: (change: Partial<Settings>) => void
  error: Error | null
}

interface NewEvaluationProps {
  /** The model and its baseline to begin with. */
  of?: string | undefined
  beside?: string | undefined
  onClose: () => void
}

export function NewEvaluation({ of, beside, onClose }: NewEvaluationProps) {
  const [settings, setSettings] = useState<Settings>({ ...defaults, model: of ?? null, baseline: beside ?? null })
  const set = (change: Partial<Settings>) => setSettings((before) => ({ ...before, ...change }))
  const [drafts, setDrafts] = useState<GraderDraft[]>([newDraft()])
  const { model, baseline, dataset, rows, heldOutOnly } = settings
  const choices = useChoices()
  const chosen = choices.data?.datasets.find(({ value }) => value === dataset)
  const training = useTraining(model)
  const latest = training.datasets[0]?.id
  // The rows that the model's training held out are the honest ones: they stand there until others are chosen.
  const suggested = training.heldOutBy && latest
  useEffect(() => {
    if (suggested) setSettings((before) => ({ ...before, dataset: before.dataset ?? suggested }))
  }, [suggested])
  const isTrainedOn = training.datasets.some(({ id, sha256 }) => id === dataset || sha256 === chosen?.sha256)
  const heldOutBy = isTrainedOn && dataset === latest ? training.heldOutBy : undefined
  const held_out_by = heldOutOnly ? heldOutBy : undefined
  const create = useCreate(settings, drafts, held_out_by)
  const asked = Math.min(rows ?? Number.POSITIVE_INFINITY, chosen?.rows ?? Number.POSITIVE_INFINITY)
  const answers = Number.isFinite(asked) ? asked * (baseline ? 2 : 1) : undefined
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="New evaluation" width="lg">
      <Form onSubmit={() => create.mutate()}>
        <Subject settings={settings} set={set} choices={choices.data} error={create.error} />
        {heldOutBy && (
          <Checkbox
            label="Only held-out rows"
            help="Rows that this model's training held out. It has not seen their answers."
            checked={heldOutOnly}
            onChange={(heldOutOnly) => set({ heldOutOnly })}
          />
        )}
        {isTrainedOn && !held_out_by && (
          <Notice tone="warn" title="The model was trained on this dataset">
            It has seen these answers, so its score says little about new questions. Use another dataset, or hold rows
            out when you train.
          </Notice>
        )}
        <GradersForm drafts={drafts} onChange={setDrafts} models={choices.data?.models ?? []} />
        <Sampling settings={settings} set={set} error={create.error} />
        {answers !== undefined && (
          <p className="text-sm text-muted">
            {held_out_by ? 'Up to ' : ''}
            {plural(answers, 'answer')} in the background. Each counts toward your daily API calls.
          </p>
        )}
        <FormError error={create.error} fields={fields} />
        <FormButtons
          onCancel={onClose}
          busy={create.isPending}
          missing={!model ? 'Choose a model.' : !dataset && 'Choose a dataset.'}
        >
          Evaluate
        </FormButtons>
      </Form>
    </Dialog>
  )
}

/** What is evaluated, and on which rows. */
function Subject({ settings, set, choices, error }: PartProps & { choices: ReturnType<typeof useChoices>['data'] }) {
  const models = choices?.models ?? []
  return (
    <div className="grid items-start gap-4 sm:grid-cols-2">
      <Field label="Model" error={fieldError(error, 'model')}>
        <Combobox
          value={settings.model}
          onChange={(model) => set({ model })}
          choices={models}
          placeholder="Choose a model"
        />
      </Field>
      <Field
        label="Baseline"
        optional
        help="Answers the same rows, for comparison."
        error={fieldError(error, 'baseline')}
      >
        <Combobox
          value={settings.baseline}
          onChange={(baseline) => set({ baseline })}
          choices={models}
          placeholder="Choose a model"
          clearable
        />
      </Field>
      <Field label="Dataset" help="Use rows the model was not trained on." error={fieldError(error, 'dataset')}>
        <Combobox
          value={settings.dataset}
          onChange={(dataset) => set({ dataset })}
          choices={choices?.datasets ?? []}
          placeholder="Choose a dataset"
        />
      </Field>
      <Field label="Rows" optional help="A fixed random sample." error={fieldError(error, 'rows')}>
        <NumberInput value={settings.rows} onChange={(rows) => set({ rows })} min={1} max={10_000} placeholder="All" />
      </Field>
    </div>
  )
}

function Sampling({ settings: { name, temperature, maxTokens }, set, error }: PartProps) {
  return (
    <Disclosure summary="Name and sampling" quiet>
      <div className="grid gap-4 pt-3 sm:grid-cols-3">
        <NameField optional error={fieldError(error, 'name')} value={name} onChange={(name) => set({ name })} />
        <Field label="Temperature">
          <NumberInput
            value={temperature}
            onChange={(temperature) => set({ temperature })}
            min={0}
            max={2}
            step={0.1}
          />
        </Field>
        <Field label="Max tokens">
          <NumberInput value={maxTokens} onChange={(maxTokens) => set({ maxTokens })} min={1} max={4096} />
        </Field>
      </div>
    </Disclosure>
  )
}

/** Creates the evaluation, and leads to its page. */
function useCreate(settings: Settings, drafts: GraderDraft[], held_out_by: string | undefined) {
  const { model, baseline, dataset, rows, maxTokens, temperature, name } = settings
  const navigate = useNavigate()
  const client = useQueryClient()
  return useMutation({
    mutationFn: () =>
      tunery.evaluations.create({
        // The API names the field that is empty.
        model: model ?? '',
        dataset: dataset ?? '',
        graders: drafts.map(graderOf),
        ...(baseline && { baseline }),
        ...(held_out_by && { held_out_by }),
        ...(rows !== null && { rows }),
        ...(name.trim() && { name }),
        sampling: { temperature: temperature ?? 0, max_tokens: maxTokens ?? 512 },
      }),
    onSuccess: async ({ id }) => {
      await client.invalidateQueries({ queryKey: ['evaluations'] })
      await navigate({ to: '/evaluations/$evaluationId', params: { evaluationId: id } })
    },
  })
}

/** The datasets that a tuned model was trained on, the latest first, and the job that held rows out of that one. */
function useTraining(model: string | null) {
  const isTuned = model?.startsWith('mdl_') ?? false
  const details = useQuery({
    queryKey: ['models', model],
    queryFn: ({ signal }) => tunery.models.get(model!, { signal }),
    enabled: isTuned,
  })
  const steps = isTuned ? (details.data?.lineage.steps.toReversed() ?? []) : []
  const job_id = steps[0]?.job_id ?? null
  const job = useQuery({
    queryKey: ['jobs', job_id],
    queryFn: ({ signal }) => tunery.jobs.get(job_id!, { signal }),
    enabled: job_id !== null,
    retry: false,
  })
  const split = job.data?.resolved_config.evaluation_config.validation_split.value ?? 0
  return {
    datasets: steps.flatMap(({ dataset }) => (dataset ? [dataset] : [])),
    heldOutBy: split > 0 ? (job_id ?? undefined) : undefined,
  }
}

/** What can be evaluated, and on which rows. */
function useChoices() {
  return useQuery({
    queryKey: ['evaluations', 'choices'],
    queryFn: async ({ signal }) => {
      const [callable, tuned, datasets] = await Promise.all([
        tunery.models.callable.list({ signal }),
        tunery.models.list({ limit: 100 }, { signal }),
        tunery.datasets.list({ limit: 100 }, { signal }),
      ])
      return {
        models: callable.data
          .filter(({ category }) => category !== 'embedding')
          .map(({ id }): Choice => {
            const tunedModel = tuned.items.find((item) => item.id === id)
            return tunedModel
              ? { value: id, label: tunedModel.name, note: tunedModel.base_model_id }
              : { value: id, label: id }
          }),
        datasets: datasets.items.map(({ id, rows, sha256, ...each }) => ({
          ...datasetChoice({ id, rows, ...each }, datasets.items),
          rows,
          sha256,
        })),
      }
    },
  })
}

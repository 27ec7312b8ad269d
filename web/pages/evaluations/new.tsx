import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useEffect, useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { datasetChoice } from '../../lib/datasets.ts'
import { fieldError } from '../../lib/errors.ts'
import { plural } from '../../lib/format.ts'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { FormError, Notice } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, NameField, NumberInput } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { Checkbox } from '../../ui/toggles.tsx'
import { type Draft, GradersForm, graderOf, newDraft } from './graders.tsx'

const fields = ['model', 'baseline', 'dataset', 'name', 'rows']

interface NewEvaluationProps {
  /** The model and its baseline to begin with. */
  of?: string | undefined
  beside?: string | undefined
  onClose: () => void
}

export function NewEvaluation({ of, beside, onClose }: NewEvaluationProps) {
  const navigate = useNavigate()
  const client = useQueryClient()
  const [model, setModel] = useState<string | null>(of ?? null)
  const [baseline, setBaseline] = useState<string | null>(beside ?? null)
  const [dataset, setDataset] = useState<string | null>(null)
  const [rows, setRows] = useState<number | null>(100)
  const [maxTokens, setMaxTokens] = useState<number | null>(512)
  const [temperature, setTemperature] = useState<number | null>(0)
  const [name, setName] = useState('')
  const [drafts, setDrafts] = useState<Draft[]>([newDraft()])
  const [heldOutOnly, setHeldOutOnly] = useState(true)
  const choices = useChoices()
  const chosen = choices.data?.datasets.find(({ value }) => value === dataset)
  const training = useTraining(model)
  // The rows that the model's training held out are the honest ones: they stand there until others are chosen.
  const suggested = training.heldOutBy && training.datasets[0]?.id
  useEffect(() => {
    if (suggested) setDataset((before) => before ?? suggested)
  }, [suggested])
  const isTrainedOn = training.datasets.some(({ id, sha256 }) => id === dataset || sha256 === chosen?.sha256)
  const held_out_by =
    heldOutOnly && isTrainedOn && dataset === training.datasets[0]?.id ? training.heldOutBy : undefined
  const create = useMutation({
    mutationFn: async () => {
      const body = {
        // The API names the field that is empty.
        model: model ?? '',
        dataset: dataset ?? '',
        graders: drafts.map(graderOf),
        ...(baseline && { baseline }),
        ...(held_out_by && { held_out_by }),
        ...(rows !== null && { rows }),
        ...(name.trim() && { name }),
        sampling: { temperature: temperature ?? 0, max_tokens: maxTokens ?? 512 },
      }
      return await tunery.evaluations.create(body)
    },
    onSuccess: async ({ id }) => {
      await client.invalidateQueries({ queryKey: ['evaluations'] })
      await navigate({ to: '/evaluations/$evaluationId', params: { evaluationId: id } })
    },
  })
  const asked = Math.min(rows ?? Number.POSITIVE_INFINITY, chosen?.rows ?? Number.POSITIVE_INFINITY)
  const answers = Number.isFinite(asked) ? asked * (baseline ? 2 : 1) : undefined
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="New evaluation" width="lg">
      <Form onSubmit={() => create.mutate()}>
        <div className="grid items-start gap-4 sm:grid-cols-2">
          <Field label="Model" error={fieldError(create.error, 'model')}>
            <Combobox
              value={model}
              onChange={setModel}
              choices={choices.data?.models ?? []}
              placeholder="Choose a model"
            />
          </Field>
          <Field
            label="Baseline"
            optional
            help="Answers the same rows, for comparison."
            error={fieldError(create.error, 'baseline')}
          >
            <Combobox
              value={baseline}
              onChange={setBaseline}
              choices={choices.data?.models ?? []}
              placeholder="Choose a model"
              clearable
            />
          </Field>
          <Field
            label="Dataset"
            help="Use rows the model was not trained on."
            error={fieldError(create.error, 'dataset')}
          >
            <Combobox
              value={dataset}
              onChange={setDataset}
              choices={choices.data?.datasets ?? []}
              placeholder="Choose a dataset"
            />
          </Field>
          <Field label="Rows" optional help="A fixed random sample." error={fieldError(create.error, 'rows')}>
            <NumberInput value={rows} onChange={setRows} min={1} max={10_000} placeholder="All" />
          </Field>
        </div>
        {isTrainedOn && training.heldOutBy && dataset === training.datasets[0]?.id && (
          <Checkbox
            label="Only held-out rows"
            help="Rows that this model's training held out. It has not seen their answers."
            checked={heldOutOnly}
            onChange={setHeldOutOnly}
          />
        )}
        {isTrainedOn && !held_out_by && (
          <Notice tone="warn" title="The model was trained on this dataset">
            It has seen these answers, so its score says little about new questions. Use another dataset, or hold rows
            out when you train.
          </Notice>
        )}
        <GradersForm drafts={drafts} onChange={setDrafts} models={choices.data?.models ?? []} />
        <Disclosure summary="Name and sampling" quiet>
          <div className="grid gap-4 pt-3 sm:grid-cols-3">
            <NameField optional error={fieldError(create.error, 'name')} value={name} onChange={setName} />
            <Field label="Temperature">
              <NumberInput value={temperature} onChange={setTemperature} min={0} max={2} step={0.1} />
            </Field>
            <Field label="Max tokens">
              <NumberInput value={maxTokens} onChange={setMaxTokens} min={1} max={4096} />
            </Field>
          </div>
        </Disclosure>
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

import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { tunery } from '../../lib/api.ts'
import { fieldError } from '../../lib/errors.ts'
import { plural } from '../../lib/format.ts'
import { type Choice, Combobox } from '../../ui/choices.tsx'
import { Disclosure } from '../../ui/disclosure.tsx'
import { FormError } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input, NumberInput } from '../../ui/field.tsx'
import { Dialog } from '../../ui/popups.tsx'
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
  const choices = useChoices()
  const chosen = choices.data?.datasets.find(({ value }) => value === dataset)
  const create = useMutation({
    mutationFn: async () => {
      const body = {
        // The API names the field that is empty.
        model: model ?? '',
        dataset: dataset ?? '',
        graders: drafts.map(graderOf),
        ...(baseline && { baseline }),
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
              placeholder="What is judged"
            />
          </Field>
          <Field
            label="Baseline"
            optional
            help="Answers the same rows: its base, or the model in use."
            error={fieldError(create.error, 'baseline')}
          >
            <Combobox
              value={baseline}
              onChange={setBaseline}
              choices={choices.data?.models ?? []}
              placeholder="Compare with"
              clearable
            />
          </Field>
          <Field
            label="Dataset"
            help="Rows that the model was not trained on."
            error={fieldError(create.error, 'dataset')}
          >
            <Combobox
              value={dataset}
              onChange={setDataset}
              choices={choices.data?.datasets ?? []}
              placeholder="The rows"
            />
          </Field>
          <Field
            label="Rows"
            optional
            help="Drawn at random, always the same ones."
            error={fieldError(create.error, 'rows')}
          >
            <NumberInput value={rows} onChange={setRows} min={1} max={10_000} placeholder="all" />
          </Field>
        </div>
        <GradersForm drafts={drafts} onChange={setDrafts} models={choices.data?.models ?? []} />
        <Disclosure summary="Name and sampling" quiet>
          <div className="grid gap-4 pt-3 sm:grid-cols-3">
            <Field label="Name" optional error={fieldError(create.error, 'name')}>
              <Input value={name} onChange={(event) => setName(event.target.value)} maxLength={200} />
            </Field>
            <Field label="Temperature">
              <NumberInput value={temperature} onChange={setTemperature} min={0} max={2} step={0.1} />
            </Field>
            <Field label="Longest answer, tokens">
              <NumberInput value={maxTokens} onChange={setMaxTokens} min={1} max={4096} />
            </Field>
          </div>
        </Disclosure>
        {answers !== undefined && (
          <p className="text-sm text-muted">
            {plural(answers, 'answer')}, made after all live requests; each counts towards the requests of the day.
          </p>
        )}
        <FormError error={create.error} fields={fields} />
        <FormButtons onCancel={onClose} busy={create.isPending} disabled={!model || !dataset}>
          Evaluate
        </FormButtons>
      </Form>
    </Dialog>
  )
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
      const names = new Map(tuned.items.map(({ id, name }) => [id, name]))
      return {
        models: callable.data
          .filter(({ category }) => category !== 'embedding')
          .map(({ id }): Choice => ({ value: id, label: names.get(id) ?? id, note: id })),
        datasets: datasets.items.map(({ id, name, rows }) => ({
          value: id,
          label: name,
          note: plural(rows, 'row'),
          rows,
        })),
      }
    },
  })
}

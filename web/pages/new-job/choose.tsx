// Model, data and method: what every job needs.
import type { Dataset, Evaluation, Model, TunedModel } from '../../../sdk/index.ts'
import { classes } from '../../lib/classes.ts'
import { formatBytes, formatCount, formatNumber, plural } from '../../lib/format.ts'
import { TextLink } from '../../ui/button.tsx'
import { type Choice, Combobox, Select } from '../../ui/choices.tsx'
import { Badge, Notice } from '../../ui/feedback.tsx'
import { Field } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import type { Method } from './draft.ts'
import type { Objective } from './fields.ts'
import { method as methodInfo } from './generated/hyperparameters.ts'
import { rich } from './setting.tsx'

export function ModelCard({
  value,
  onChange,
  bases,
  tuned,
  error,
}: {
  value: string | null
  onChange: (value: string | null) => void
  bases: readonly Model[]
  tuned: readonly TunedModel[]
  error?: string
}) {
  const base = bases.find(({ id }) => id === value)
  const earlier = tuned.find(({ id }) => id === value)
  const choices: Choice[] = [
    ...bases.map(({ id, name, params_billions, methods, weights, context_length }) => ({
      value: id,
      label: name,
      note:
        methods.length === 0
          ? 'Cannot be trained on this machine'
          : [
              `${formatNumber(params_billions)} B parameters`,
              `${formatCount(context_length)} tokens of context`,
              !weights.available &&
                `downloaded first${weights.size_mb ? `, ${formatBytes(weights.size_mb * 1e6)}` : ''}`,
            ]
              .filter(Boolean)
              .join(' · '),
      disabled: methods.length === 0,
    })),
    ...tuned.map(({ id, name, base_model_id }) => ({
      value: id,
      label: name,
      note: `Your model, on ${base_model_id}: training goes on from it`,
    })),
  ]
  return (
    <Card title="1. Model" description="A base, or a model of yours to go on from.">
      <div className="grid gap-3">
        <Field label="Model to start from" hideLabel error={error}>
          <Combobox value={value} onChange={onChange} choices={choices} placeholder="Find a model…" />
        </Field>
        {base && (
          <p className="text-muted">
            {base.description} <span className="whitespace-nowrap">License: {base.license}.</span>
          </p>
        )}
        {base && !base.weights.available && (
          <Notice title="Its weights are not here yet">
            {base.weights.how_to_get ?? 'The job downloads them first, and waits for them.'}
          </Notice>
        )}
        {earlier && (
          <p className="text-muted">
            Trained on {earlier.base_model_id} by {earlier.method}
            {earlier.description && `: ${earlier.description}`}. An adapter keeps its rank, alpha and layers.{' '}
            <TextLink to="/models/$modelId" params={{ modelId: earlier.id }}>
              Look at it
            </TextLink>
          </p>
        )}
      </div>
    </Card>
  )
}

const kinds: Record<Objective, string> = {
  sft: 'conversations',
  dpo: 'pairs of answers',
  kto: 'rated answers',
}

export function DataCard({
  value,
  onChange,
  datasets,
  hasMore,
  dataset,
  error,
}: {
  value: string | null
  onChange: (value: string | null) => void
  datasets: readonly Dataset[]
  hasMore: boolean
  dataset?: Dataset
  error?: string
}) {
  return (
    <Card
      title="2. Data"
      description="The examples that it learns from."
      actions={<TextLink to="/datasets">Add a dataset</TextLink>}
    >
      <div className="grid gap-3">
        <Field
          label="Dataset"
          hideLabel
          error={error}
          help={
            hasMore ? 'The newest hundred are listed. Open another under Datasets and choose “Train on it”.' : undefined
          }
        >
          <Combobox
            value={value}
            onChange={onChange}
            placeholder="Find a dataset…"
            empty={datasets.length === 0 ? 'No dataset yet: add one first' : 'No name has that in it'}
            choices={datasets.map(({ id, name, rows, objectives, status }) => ({
              value: id,
              label: name,
              note:
                status === 'ready'
                  ? `${plural(rows, 'row')} · ${objectives.map((each) => kinds[each]).join(', ')}`
                  : status === 'preparing'
                    ? 'Its rows are being read'
                    : 'Cannot be read',
              disabled: status === 'unreadable',
            }))}
          />
        </Field>
        {dataset && (
          <p className="text-muted">
            {dataset.status === 'preparing'
              ? 'Its rows are being read; this page goes on by itself. '
              : `${plural(dataset.rows, 'row')}: ${dataset.objectives.map((each) => kinds[each]).join(', ')}. `}
            <TextLink to="/datasets/$datasetId" params={{ datasetId: dataset.id }}>
              Check the rows
            </TextLink>
          </p>
        )}
      </div>
    </Card>
  )
}

const methods: Record<Method, { title: string; text: string }> = {
  lora: {
    title: 'LoRA',
    text: 'Trains small matrices beside the base. Nearly always right: little memory, and many results share one base when served.',
  },
  qlora: {
    title: 'QLoRA',
    text: 'The same on a base in 4 bits. For bases that do not fit into memory otherwise; each step is slower.',
  },
  full: {
    title: 'Full',
    text: 'Trains every weight. Much memory, for many rows far from what the base knows; the result is a model of its own.',
  },
}
const objectiveTexts: Record<Objective, { title: string; text: string }> = {
  sft: { title: 'Answers', text: 'SFT: learns to answer as the examples do.' },
  dpo: { title: 'Better answers', text: 'DPO: learns which of two answers is better.' },
  kto: { title: 'Rated answers', text: 'KTO: learns from answers rated as good or bad.' },
}

export function MethodCard({
  value,
  onChange,
  allowed,
  objective,
  objectives,
  onObjective,
  error,
}: {
  value: Method
  onChange: (value: Method) => void
  /** What this machine has the memory for. */
  allowed: readonly Method[] | undefined
  objective: Objective
  /** What the rows of the dataset can teach. */
  objectives: readonly Objective[]
  onObjective: (objective: Objective) => void
  error?: string
}) {
  return (
    <Card title="3. Method" description={rich(methodInfo.description)}>
      <div className="grid gap-4">
        <Tiles
          legend="Method"
          name="method"
          value={value}
          onChange={onChange}
          tiles={(methodInfo.choices as readonly Method[]).map((each) => ({
            value: each,
            ...methods[each],
            mark: each === methodInfo.default ? 'default' : undefined,
            disabled: allowed && !allowed.includes(each) ? 'Too little memory here' : undefined,
          }))}
        />
        {error && <p className="text-sm text-bad">{error}</p>}
        {objectives.length > 1 ? (
          <Tiles
            legend="What is learned"
            name="objective"
            value={objective}
            onChange={onObjective}
            tiles={objectives.map((each) => ({ value: each, ...objectiveTexts[each] }))}
          />
        ) : (
          objective !== 'sft' && (
            <p className="text-muted">
              <Badge tone="accent">{objective}</Badge> {objectiveTexts[objective].text} The rows of this dataset are{' '}
              {kinds[objective]}.
            </p>
          )
        )}
      </div>
    </Card>
  )
}

interface Tile<T> {
  value: T
  title: string
  text: string
  mark?: string
  /** Why it cannot be chosen. */
  disabled?: string
}

/** One of a few, each with a sentence. */
function Tiles<T extends string>({
  legend,
  name,
  value,
  onChange,
  tiles,
}: {
  legend: string
  name: string
  value: T
  onChange: (value: T) => void
  tiles: readonly Tile<T>[]
}) {
  return (
    <fieldset>
      <legend className="mb-1.5 font-medium">{legend}</legend>
      <div className="grid gap-3 sm:grid-cols-3">
        {tiles.map((tile) => (
          <label
            key={tile.value}
            className={classes(
              'relative flex flex-col rounded-lg p-3 ring-1 transition-colors duration-100',
              'has-focus-visible:outline-2 has-focus-visible:outline-offset-2 has-focus-visible:outline-focus',
              value === tile.value ? 'bg-accent-soft ring-accent-ink' : 'ring-edge/60',
              tile.disabled ? 'bg-sunken' : value !== tile.value && 'hover:bg-hover',
            )}
          >
            <span className="flex items-center gap-2 font-medium">
              <input
                type="radio"
                name={name}
                value={tile.value}
                checked={value === tile.value}
                disabled={Boolean(tile.disabled)}
                onChange={() => onChange(tile.value)}
                className="size-4 outline-none"
              />
              {tile.title}
              {tile.mark && <Badge>{tile.mark}</Badge>}
            </span>
            <span className="mt-1 text-sm text-muted">
              {tile.disabled && <span className="font-medium text-ink">{tile.disabled}. </span>}
              {tile.text}
            </span>
          </label>
        ))}
      </div>
    </fieldset>
  )
}

/** Stands for none. */
const noEvaluation = ' '

/** An evaluation to run once the job is done. */
export function EvaluationField({
  value,
  onChange,
  evaluations,
  error,
}: {
  value: string | null
  onChange: (value: string | null) => void
  evaluations: readonly Evaluation[]
  error?: string
}) {
  return (
    <Field
      label="Evaluation at the end"
      optional
      error={error}
      help={
        evaluations.length === 0 ? (
          <>
            Answers the same rows as an earlier evaluation, beside the model that training starts from. There is none
            yet: <TextLink to="/evaluations">make one</TextLink> first.
          </>
        ) : (
          'The result answers the same rows as this evaluation, beside the model that training starts from; the same graders score it.'
        )
      }
    >
      <Select<string>
        value={value ?? noEvaluation}
        disabled={evaluations.length === 0 && !value}
        onChange={(next) => onChange(next === noEvaluation ? null : next)}
        choices={[
          { value: noEvaluation, label: 'None' },
          ...evaluations.map(({ id, name, model }) => ({ value: id, label: name, note: model ?? undefined })),
          ...(value && !evaluations.some(({ id }) => id === value) ? [{ value, label: value }] : []),
        ]}
      />
    </Field>
  )
}

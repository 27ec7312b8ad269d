// Model, data and method: what every job needs.
import type { ReactNode } from 'react'
import type { Dataset, Evaluation, Model, TunedModel } from '../../../sdk/index.ts'
import { classes } from '../../lib/classes.ts'
import { datasetChoice } from '../../lib/datasets.ts'
import { formatBytes, formatCount, formatParameters, plural } from '../../lib/format.ts'
import { TextLink } from '../../ui/button.tsx'
import { type Choice, Combobox, Select } from '../../ui/choices.tsx'
import { Badge, Notice } from '../../ui/feedback.tsx'
import { Field } from '../../ui/field.tsx'
import { Card } from '../../ui/layout.tsx'
import { Radio } from '../../ui/toggles.tsx'
import type { Method } from './draft.ts'
import type { Objective } from './fields.ts'
import { method as methodInfo } from './generated/hyperparameters.ts'

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
  error?: string | undefined
}) {
  const base = bases.find(({ id }) => id === value)
  const earlier = tuned.find(({ id }) => id === value)
  const choices: Choice[] = [
    ...bases.map(({ id, name, params_billions, methods, weights, context_length, recommended }) => ({
      value: id,
      label: name,
      note:
        methods.length === 0
          ? 'Needs more memory than this machine has'
          : [
              recommended && 'Recommended',
              `${formatParameters(params_billions)} parameters`,
              `${formatCount(context_length)} tokens context`,
              !weights.available && `${weights.size_mb ? `${formatBytes(weights.size_mb * 1e6)} ` : ''}download`,
            ]
              .filter(Boolean)
              .join(' · '),
      disabled: methods.length === 0,
    })),
    ...tuned.map(({ id, name, base_model_id }) => ({
      value: id,
      label: name,
      note: `Your model, based on ${base_model_id}`,
    })),
  ]
  return (
    <Card title="1. Model" description="Start from a base model or continue from one of yours.">
      <div className="grid gap-3">
        <Field label="Starting model" hideLabel error={error}>
          <Combobox value={value} onChange={onChange} choices={choices} placeholder="Choose a model" />
        </Field>
        {base && (
          <p className="text-muted">
            {base.description}
            {base.license !== 'unknown' && <span className="whitespace-nowrap"> License: {base.license}.</span>}
          </p>
        )}
        {base && !base.weights.available && (
          <Notice title="Not downloaded yet">
            {base.weights.how_to_get ?? 'The job downloads the weights first.'}
          </Notice>
        )}
        {earlier && (
          <p className="text-muted">
            Trained on {earlier.base_model_id} by {earlier.method}
            {earlier.description && `: ${earlier.description}`}. The adapter keeps its rank, alpha and layers.{' '}
            <TextLink to="/models/$modelId" params={{ modelId: earlier.id }}>
              View model
            </TextLink>
          </p>
        )}
      </div>
    </Card>
  )
}

const kinds: Record<Objective, string> = {
  sft: 'conversations',
  dpo: 'preference pairs',
  kto: 'rated answers',
  reinforcement: 'prompts',
}

export function DataCard({
  value,
  onChange,
  datasets,
  hasMore,
  dataset,
  error,
  children,
}: {
  value: string | null
  onChange: (value: string | null) => void
  datasets: readonly Dataset[]
  hasMore: boolean
  dataset?: Dataset | undefined
  error?: string | undefined
  children?: ReactNode
}) {
  return (
    <Card
      title="2. Data"
      description="The examples the model learns from."
      actions={<TextLink to="/datasets">Add dataset</TextLink>}
    >
      <div className="grid gap-3">
        <Field
          label="Dataset"
          hideLabel
          error={error}
          help={
            hasMore ? 'Shows the newest 100. To use an older one, open it under Datasets and choose Train.' : undefined
          }
        >
          <Combobox
            value={value}
            onChange={onChange}
            placeholder="Choose a dataset"
            empty={datasets.length === 0 ? 'No datasets yet' : 'No matching datasets'}
            choices={datasets.map((each) =>
              datasetChoice(
                each,
                datasets,
                each.objectives.map((objective) => kinds[objective]),
              ),
            )}
          />
        </Field>
        {dataset && (
          <p className="text-muted">
            {dataset.status === 'preparing'
              ? 'Reading rows… '
              : `${plural(dataset.rows, 'row')}: ${dataset.objectives.map((each) => kinds[each]).join(', ')}. `}
            <TextLink to="/datasets/$datasetId" params={{ datasetId: dataset.id }}>
              View rows
            </TextLink>
          </p>
        )}
        {children}
      </div>
    </Card>
  )
}

const methods: Record<Method, { title: string; text: string }> = {
  lora: {
    title: 'LoRA',
    text: 'Trains a small adapter. The right choice for most jobs: little memory, and many adapters share one base.',
  },
  qlora: { title: 'QLoRA', text: 'LoRA on a 4-bit base. For models that would not fit in memory; slower per step.' },
  full: {
    title: 'Full',
    text: 'Trains all weights. Needs much memory; for large datasets far from what the base knows.',
  },
}
const objectiveTexts: Record<Objective, { title: string; text: string }> = {
  sft: { title: 'Answers (SFT)', text: 'Learns to answer like the examples.' },
  dpo: { title: 'Preferences (DPO)', text: 'Learns which of two answers is better.' },
  kto: { title: 'Ratings (KTO)', text: 'Learns from answers rated good or bad.' },
  reinforcement: {
    title: 'Graders (reinforcement)',
    text: 'Learns from the scores that graders give its own answers.',
  },
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
  error?: string | undefined
}) {
  return (
    <Card title="3. Method">
      <div className="grid gap-4">
        <Tiles
          legend="Method"
          hideLegend
          name="method"
          value={value}
          onChange={onChange}
          tiles={(methodInfo.choices as readonly Method[]).map((each) => ({
            value: each,
            ...methods[each],
            mark: each === methodInfo.default ? 'default' : undefined,
            disabled:
              objective === 'reinforcement' && each === 'full'
                ? 'Not with graders'
                : allowed && !allowed.includes(each)
                  ? 'Not enough memory'
                  : undefined,
          }))}
        />
        {error && <p className="text-sm text-bad">{error}</p>}
        {objectives.length > 1 ? (
          <Tiles
            legend="Objective"
            name="objective"
            value={objective}
            onChange={onObjective}
            tiles={objectives.map((each) => ({ value: each, ...objectiveTexts[each] }))}
          />
        ) : (
          objective !== 'sft' && (
            <p className="text-muted">
              <Badge tone="accent">{objective}</Badge> {objectiveTexts[objective].text} This dataset has{' '}
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
  mark?: string | undefined
  /** Why it cannot be chosen. */
  disabled?: string | undefined
}

/** One of a few, each with a sentence. */
function Tiles<T extends string>({
  legend,
  hideLegend,
  name,
  value,
  onChange,
  tiles,
}: {
  legend: string
  /** Where the title of the card says it. */
  hideLegend?: boolean
  name: string
  value: T
  onChange: (value: T) => void
  tiles: readonly Tile<T>[]
}) {
  return (
    <fieldset>
      <legend className={hideLegend ? 'sr-only' : 'mb-1.5 font-medium'}>{legend}</legend>
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
              <Radio
                name={name}
                value={tile.value}
                checked={value === tile.value}
                disabled={Boolean(tile.disabled)}
                onChange={() => onChange(tile.value)}
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
  error?: string | undefined
}) {
  return (
    <Field
      label="Evaluate when done"
      optional
      error={error}
      help={
        evaluations.length === 0 ? (
          <>
            Runs one of your evaluations on the trained model. You have none yet: create one under{' '}
            <TextLink to="/evaluations">Evaluations</TextLink>, also on a base model.
          </>
        ) : (
          'Runs this evaluation on the trained model and its starting model.'
        )
      }
    >
      <Select<string>
        value={value ?? noEvaluation}
        disabled={evaluations.length === 0 && !value}
        onChange={(next) => onChange(next === noEvaluation ? null : next)}
        choices={[
          { value: noEvaluation, label: 'None' },
          ...evaluations.map(({ id, name }) => ({ value: id, label: name })),
          ...(value && !evaluations.some(({ id }) => id === value) ? [{ value, label: value }] : []),
        ]}
      />
    </Field>
  )
}

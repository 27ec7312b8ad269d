// Graders in a form: of an evaluation, and of a job that learns from them.
import { Plus, Trash2 } from 'lucide-react'
import type { ReactNode } from 'react'
import { similarityMetrics } from '../../contract/graders.ts'
import type { GraderInput } from '../../sdk/index.ts'
import { Button, IconButton } from '../ui/button.tsx'
import { type Choice, Select } from '../ui/choices.tsx'
import { Disclosure } from '../ui/disclosure.tsx'
import { Field, Input, NumberInput, Textarea } from '../ui/field.tsx'

type Of<T extends GraderInput['type']> = Extract<GraderInput, { type: T }>
type Operation = Of<'string_check'>['operation']
type Metric = Of<'text_similarity'>['evaluation_metric']

/** A grader while it is written; texts that are JSON are read when it is sent. */
export interface GraderDraft {
  type: string
  name: string
  input: string
  reference: string
  operation: Operation
  metric: Metric
  threshold: number | null
  pattern: string
  schema: string
  fields: string
  model: string
  instruction: string
  labels: string
  passing: string
  source: string
  url: string
  json: string
}

const kinds: Choice[] = [
  { value: 'string_check', label: 'Exact or contains', note: 'For answers with one correct text' },
  { value: 'text_similarity', label: 'Text similarity', note: 'For free text; 1 is identical' },
  {
    value: 'json_equal',
    label: 'JSON fields match',
    note: 'For extraction; the score is the share of matching fields',
  },
  { value: 'json_schema', label: 'JSON matches a schema' },
  { value: 'regex', label: 'Text matches a pattern' },
  { value: 'label_model', label: 'Model judge: label', note: 'For answers that need a reader' },
  { value: 'score_model', label: 'Model judge: score' },
  { value: 'python', label: 'Python', note: 'Your own function, run in a sandbox' },
  { value: 'endpoint', label: 'Your endpoint', note: 'An https address of yours that gives the score' },
  { value: 'json', label: 'Custom JSON', note: 'All other graders: contains, tool_call, multi' },
]

export const newDraft = (): GraderDraft => ({
  type: 'string_check',
  name: 'exact match',
  input: '{{sample.output_text}}',
  reference: '{{item.reference}}',
  operation: 'eq',
  metric: 'fuzzy_match',
  threshold: 0.5,
  pattern: '',
  schema: '{"type":"object"}',
  fields: '',
  model: '',
  instruction:
    'Is the answer correct?\n\nQuestion: {{item.messages}}\nExpected: {{item.reference}}\nAnswer: ' +
    '{{sample.output_text}}',
  labels: 'correct, incorrect',
  passing: 'correct',
  source:
    'def grade(sample, item):\n' +
    '    return 1.0 if sample["output_text"].strip() == item["reference"].strip() else 0.0\n',
  url: 'https://',
  json: '{"type":"contains","name":"contains"}',
})

const words = (text: string) =>
  text
    .split(',')
    .map((word) => word.trim())
    .filter(Boolean)

function parsed<T extends object>(text: string, what: string): T {
  try {
    return JSON.parse(text) as T
  } catch (error) {
    throw new Error(`${what}: this is not JSON. ${(error as Error).message}`)
  }
}

/** The grader as the API takes it. Throws an Error that names what cannot be read. */
export function graderOf(draft: GraderDraft): GraderInput {
  const { type, name, input, reference, threshold } = draft
  const judge = { name, model: draft.model, input: [{ role: 'user' as const, content: draft.instruction }] }
  switch (type) {
    case 'string_check':
      return { type, name, input, reference, operation: draft.operation }
    case 'text_similarity':
      return { type, name, input, reference, evaluation_metric: draft.metric, pass_threshold: threshold ?? 0.5 }
    case 'json_equal':
      return { type, name, input, reference, ...(draft.fields.trim() && { fields: words(draft.fields) }) }
    case 'json_schema':
      return { type, name, input, schema: parsed(draft.schema, 'The schema') }
    case 'regex':
      return { type, name, input, pattern: draft.pattern }
    case 'label_model':
      return { type, ...judge, labels: words(draft.labels), passing_labels: words(draft.passing) }
    case 'score_model':
      return { type, ...judge, range: [0, 1], ...(threshold !== null && { pass_threshold: threshold }) }
    case 'python':
      return { type, name, source: draft.source, pass_threshold: threshold ?? 0.5 }
    case 'endpoint':
      return { type, name, url: draft.url, pass_threshold: threshold ?? 0.5 }
    default:
      // The API checks what was typed.
      return parsed(draft.json, 'The grader')
  }
}

/** What the form has fields for of a grader. */
function fieldsOf(grader: GraderInput): Partial<GraderDraft> {
  const threshold = 'pass_threshold' in grader ? (grader.pass_threshold ?? null) : newDraft().threshold
  switch (grader.type) {
    case 'string_check':
      return { input: grader.input, reference: grader.reference, operation: grader.operation }
    case 'text_similarity':
      return { input: grader.input, reference: grader.reference, metric: grader.evaluation_metric, threshold }
    case 'json_equal':
      return {
        ...(grader.input !== undefined && { input: grader.input }),
        ...(grader.reference !== undefined && { reference: grader.reference }),
        fields: grader.fields?.join(', ') ?? '',
      }
    case 'json_schema':
      return { ...(grader.input !== undefined && { input: grader.input }), schema: JSON.stringify(grader.schema) }
    case 'regex':
      return { ...(grader.input !== undefined && { input: grader.input }), pattern: grader.pattern }
    case 'label_model':
      return { ...judgeOf(grader), labels: grader.labels.join(', '), passing: grader.passing_labels.join(', ') }
    case 'score_model':
      return { ...judgeOf(grader), threshold: grader.pass_threshold ?? null }
    case 'python':
      return { source: grader.source, threshold }
    case 'endpoint':
      return { url: grader.url, threshold }
    default:
      return {}
  }
}

const judgeOf = ({ model, input }: Of<'label_model'> | Of<'score_model'>): Partial<GraderDraft> => ({
  model,
  instruction: typeof input[0]?.content === 'string' ? input[0].content : '',
})

/** What the API adds to graders, and the form has no field for. */
const added: Record<string, unknown> = {
  ignore_case: false,
  negate: false,
  secret_name: 'default',
  timeout_seconds: 30,
}

/** A grader as the form shows it: in its fields where they say all of it, else as JSON. */
export function graderDraftOf(grader: GraderInput): GraderDraft {
  const draft = { ...newDraft(), type: grader.type, name: grader.name, ...fieldsOf(grader) }
  const same = () => {
    const written = graderOf(draft) as unknown as Record<string, unknown>
    return Object.entries(grader).every(
      ([name, value]) => JSON.stringify(written[name] ?? added[name]) === JSON.stringify(value),
    )
  }
  return kinds.some(({ value }) => value === grader.type) && same()
    ? draft
    : { ...newDraft(), type: 'json', name: grader.name, json: JSON.stringify(grader, null, 2) }
}

export function GradersForm({
  drafts,
  onChange,
  models,
  text = "With several graders, a row's score is their mean, and it passes if every grader passes.",
  hideLegend,
}: {
  drafts: readonly GraderDraft[]
  onChange: (drafts: GraderDraft[]) => void
  models: readonly Choice[]
  text?: ReactNode
  /** Where the title of a card says it. */
  hideLegend?: boolean
}) {
  const set = (at: number, change: Partial<GraderDraft>) =>
    onChange(drafts.map((draft, index) => (index === at ? { ...draft, ...change } : draft)))
  return (
    <fieldset className="grid min-w-0 grid-cols-[minmax(0,1fr)] gap-3">
      <legend className={hideLegend ? 'sr-only' : 'mb-1 font-medium'}>Graders</legend>
      <p className="text-sm text-muted">{text}</p>
      {drafts.map((draft, index) => (
        <div key={index} className="grid grid-cols-[minmax(0,1fr)] gap-3 rounded-md p-3 ring-1 ring-line">
          <div className="flex flex-wrap items-start gap-2">
            <Field label="Kind" className="min-w-0 flex-1 basis-44">
              <Select value={draft.type} onChange={(type) => set(index, { type })} choices={kinds} />
            </Field>
            {draft.type !== 'json' && (
              <Field label="Name" className="w-32">
                <Input value={draft.name} onChange={(event) => set(index, { name: event.target.value })} />
              </Field>
            )}
            {drafts.length > 1 && (
              <IconButton
                label="Remove this grader"
                icon={<Trash2 aria-hidden />}
                className="mt-7"
                onClick={() => onChange(drafts.filter((_, at) => at !== index))}
              />
            )}
          </div>
          <Fields draft={draft} set={(change) => set(index, change)} models={models} />
        </div>
      ))}
      <div>
        <Button
          size="sm"
          icon={<Plus aria-hidden />}
          onClick={() => onChange([...drafts, { ...newDraft(), name: `grader ${drafts.length + 1}` }])}
        >
          Add grader
        </Button>
      </div>
    </fieldset>
  )
}

const operations: Choice[] = [
  { value: 'eq', label: 'equals' },
  { value: 'ne', label: 'does not equal' },
  { value: 'like', label: 'contains' },
  { value: 'ilike', label: 'contains (ignore case)' },
]

function Fields({
  draft,
  set,
  models,
}: {
  draft: GraderDraft
  set: (change: Partial<GraderDraft>) => void
  models: readonly Choice[]
}) {
  const text = (
    name: 'input' | 'reference' | 'pattern' | 'fields' | 'labels' | 'passing' | 'url',
    label: string,
    help?: string,
  ) => (
    <Field label={label} help={help}>
      <Input value={draft[name]} onChange={(event) => set({ [name]: event.target.value })} className="font-mono" />
    </Field>
  )
  const area = (name: 'schema' | 'instruction' | 'source' | 'json', label: string, help?: string) => (
    <Field label={label} help={help}>
      <Textarea
        mono
        rows={name === 'source' ? 10 : 4}
        value={draft[name]}
        onChange={(event) => set({ [name]: event.target.value })}
      />
    </Field>
  )
  const threshold = (
    <Field label="Pass threshold" help="Score from 0 to 1.">
      <NumberInput value={draft.threshold} onChange={(next) => set({ threshold: next })} min={0} max={1} step={0.05} />
    </Field>
  )
  const templates = (
    <Disclosure summary="Compared texts" quiet>
      <div className="grid gap-3 pt-2">
        {text('input', 'Graded text', '{{sample.output_text}} is the model’s answer.')}
        {text('reference', 'Reference', '{{item.reference}} is the answer in the dataset.')}
      </div>
    </Disclosure>
  )
  switch (draft.type) {
    case 'string_check':
      return (
        <>
          <Field
            label="Answer"
            help={draft.reference === '{{item.reference}}' ? 'the answer in the dataset' : draft.reference}
          >
            <Select
              value={draft.operation}
              onChange={(operation) => set({ operation: operation as Operation })}
              choices={operations}
            />
          </Field>
          {templates}
        </>
      )
    case 'text_similarity':
      return (
        <>
          <div className="grid gap-3 sm:grid-cols-2">
            <Field label="Measure">
              <Select
                value={draft.metric}
                onChange={(metric) => set({ metric: metric as Metric })}
                choices={similarityMetrics.map((value) => ({ value, label: value }))}
              />
            </Field>
            {threshold}
          </div>
          {templates}
        </>
      )
    case 'json_equal':
      return (
        <>
          {text('fields', 'Fields', 'For example product, address.city. Leave empty to compare all fields.')}
          {templates}
        </>
      )
    case 'json_schema':
      return area('schema', 'JSON Schema')
    case 'regex':
      return text('pattern', 'Pattern', 'RE2 syntax, without back-references and look-around.')
    case 'label_model':
    case 'score_model':
      return (
        <>
          <Field label="Judge" help="Any model of this service.">
            <Select value={draft.model || null} onChange={(model) => set({ model })} choices={models} />
          </Field>
          {area(
            'instruction',
            'Judge prompt',
            '{{item.…}} are fields of the row, {{sample.output_text}} is the answer.',
          )}
          {draft.type === 'score_model' ? (
            threshold
          ) : (
            <div className="grid gap-3 sm:grid-cols-2">
              {text('labels', 'Labels')}
              {text('passing', 'Passing labels')}
            </div>
          )}
        </>
      )
    case 'python':
      return (
        <>
          {area(
            'source',
            'Source',
            'Define grade(sample, item), which returns a number. Python’s standard library; no files, no network.',
          )}
          {threshold}
        </>
      )
    case 'endpoint':
      return (
        <>
          {text(
            'url',
            'Address',
            'It is posted {"grader", "sample", "item"}, signed as webhooks are, and answers a score.',
          )}
          {threshold}
        </>
      )
    default:
      return area('json', 'Grader', 'See the guide on evaluations for all graders.')
  }
}

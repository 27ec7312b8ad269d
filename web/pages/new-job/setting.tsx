// One hyperparameter as a field: its default, its range, and a sentence on what it does, all from the contract.
import { Plus, X } from 'lucide-react'
import { Fragment, type ReactNode, useRef, useState } from 'react'
import { settingLabel } from '../../lib/jobs.ts'
import { Button, IconButton } from '../../ui/button.tsx'
import { Select } from '../../ui/choices.tsx'
import { Field, Input, NumberInput, Textarea } from '../../ui/field.tsx'
import { defaultOf, type HyperparameterInfo, numberOf, rangeOf, shownDescription } from './fields.ts'

/** A text with `code` in backticks. */
const rich = (text: string): ReactNode =>
  text.split('`').map((piece, index) =>
    index % 2 === 1 ? (
      <code key={index} className="font-mono text-[0.92em] text-ink">
        {piece}
      </code>
    ) : (
      <Fragment key={index}>{piece}</Fragment>
    ),
  )

interface SettingProps {
  info: HyperparameterInfo
  value: unknown
  onChange: (value: unknown) => void
  error?: string | undefined
  /** What the service would take, where nothing is set. */
  inForce?: unknown | undefined
  /** For settings that name another thing of the account: the control that chooses it. */
  control?: ReactNode
}

/** Steps of the buttons beside a number: a thousandth of its range. */
const stepOf = ({ type, maximum = 1 }: HyperparameterInfo) => (type === 'integer' ? 1 : maximum / 1000)

export function Setting({ info, value, onChange, error, inForce, control }: SettingProps) {
  const range = rangeOf(info)
  const label = (
    <span className="inline-flex flex-wrap items-baseline gap-x-2">
      {settingLabel(info.name)}
      {settingLabel(info.name) !== info.name && (
        <code className="font-mono text-xs font-normal text-muted">{info.name}</code>
      )}
    </span>
  )
  const help = (
    <>
      {rich(shownDescription(info))}{' '}
      <span className="text-ink">
        Default: {rich(defaultOf(info))}
        {range && !info.choices && `. ${range}`}.
      </span>
    </>
  )
  if (info.type === 'list' && info.name !== 'target_modules')
    return <Prompts info={info} label={label} help={help} value={value} onChange={onChange} error={error} />
  return (
    <Field label={label} help={help} error={error} live>
      {control || <Control info={info} value={value} onChange={onChange} inForce={inForce} />}
    </Field>
  )
}

const shown = (value: unknown): string | undefined =>
  typeof value === 'number'
    ? numberOf(value)
    : Array.isArray(value)
      ? value.join(', ')
      : typeof value === 'string'
        ? value
        : typeof value === 'boolean'
          ? value
            ? 'yes'
            : 'no'
          : undefined

/** Longer words stand below the field alone. */
const placeholder_characters = 24

/** Stands for nothing that is set. */
const ofDefault = ' '

function Control({ info, value, onChange, inForce }: Omit<SettingProps, 'error' | 'control'>) {
  const words = defaultOf(info)
  // While it is measured again, what was in force stays.
  const last = useRef<string>(undefined)
  last.current = shown(inForce) ?? last.current
  const placeholder = last.current ?? (words.length > placeholder_characters ? 'Default' : words)
  switch (info.type) {
    case 'integer':
    case 'number':
      return (
        <NumberInput
          value={(value as number | undefined) ?? null}
          onChange={(next) => onChange(next ?? undefined)}
          step={stepOf(info)}
          decimals={info.type === 'number'}
          placeholder={placeholder}
        />
      )
    case 'choice':
      return (
        <Select<string>
          value={(value as string | undefined) ?? ofDefault}
          onChange={(next) => onChange(next === ofDefault ? undefined : next)}
          choices={[
            { value: ofDefault, label: `Default (${placeholder})` },
            ...(info.choices ?? []).map((each) => ({ value: each, label: each })),
          ]}
        />
      )
    case 'boolean':
      return (
        <Select<string>
          value={typeof value === 'boolean' ? String(value) : ofDefault}
          onChange={(next) => onChange(next === ofDefault ? undefined : next === 'true')}
          choices={[
            { value: ofDefault, label: `Default (${placeholder})` },
            { value: 'true', label: 'Yes' },
            { value: 'false', label: 'No' },
          ]}
        />
      )
    case 'list':
      return <Words value={value as string[] | undefined} onChange={onChange} placeholder={placeholder} />
    case 'string':
      return (
        <Input
          value={(value as string | undefined) ?? ''}
          placeholder={placeholder}
          onChange={({ target }) => onChange(target.value || undefined)}
        />
      )
  }
}

/** Names with commas between. */
function Words({
  value,
  onChange,
  placeholder,
}: {
  value: string[] | undefined
  onChange: (value: unknown) => void
  placeholder: string
}) {
  const [text, setText] = useState(() => value?.join(', ') ?? '')
  return (
    <Input
      value={text}
      placeholder={placeholder}
      spellCheck={false}
      autoCapitalize="off"
      onChange={({ target }) => {
        setText(target.value)
        const words = target.value.split(/[\s,]+/).filter(Boolean)
        onChange(words.length > 0 ? words : undefined)
      }}
    />
  )
}

/** Prompts: texts, or messages as JSON. */
function Prompts({
  info,
  label,
  help,
  value,
  onChange,
  error,
}: Pick<SettingProps, 'info' | 'value' | 'onChange' | 'error'> & { label: ReactNode; help: ReactNode }) {
  const prompts = (value as unknown[] | undefined) ?? []
  const set = (next: unknown[]) => onChange(next.length > 0 ? next : undefined)
  return (
    <fieldset className="grid gap-1.5">
      <legend className="mb-1.5 font-medium">{label}</legend>
      {prompts.map((prompt, index) => (
        <div key={index} className="flex items-start gap-2">
          <div className="min-w-0 flex-1">
            <Textarea
              aria-label={`Prompt ${index + 1}`}
              rows={1}
              maxRows={6}
              value={typeof prompt === 'string' ? prompt : JSON.stringify(prompt)}
              onChange={({ target }) => set(prompts.with(index, messagesOr(target.value)))}
            />
          </div>
          <IconButton
            label={`Remove prompt ${index + 1}`}
            icon={<X aria-hidden />}
            onClick={() => set(prompts.filter((_, each) => each !== index))}
          />
        </div>
      ))}
      {prompts.length < (info.most ?? Number.POSITIVE_INFINITY) && (
        <div>
          <Button size="sm" icon={<Plus aria-hidden />} onClick={() => set([...prompts, ''])}>
            Add prompt
          </Button>
        </div>
      )}
      {error && <p className="text-sm text-bad">{error}</p>}
      <p className="text-sm text-muted">{help}</p>
    </fieldset>
  )
}

/** A list of messages where the text is one; else the text. */
function messagesOr(text: string): unknown {
  if (!text.startsWith('[')) return text
  try {
    const value: unknown = JSON.parse(text)
    return Array.isArray(value) && value.every((each) => typeof each === 'object' && each && 'role' in each)
      ? value
      : text
  } catch {
    return text
  }
}

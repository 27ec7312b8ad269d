// A control with its label, help and error, and the text controls.
import { Field as BaseField } from '@base-ui/react/field'
import { Minus, Plus } from 'lucide-react'
import {
  type ComponentProps,
  createContext,
  type ReactNode,
  useContext,
  useEffect,
  useId,
  useRef,
  useState,
} from 'react'
import { classes } from '../lib/classes.ts'
import { formatNumber } from '../lib/format.ts'
import { Button } from './button.tsx'

export const controlClass = classes(
  'w-full rounded-md bg-surface text-ink ring-1 ring-inset ring-edge transition-shadow duration-100',
  'focus-visible:outline-2 focus-visible:-outline-offset-1 data-invalid:ring-bad disabled:opacity-60 ' +
    'data-disabled:opacity-60',
  'any-pointer-coarse:text-[1rem]',
)
const heightClass = 'h-8.5 px-2.5 any-pointer-coarse:h-10'

/** By which a control tells its field what is wrong with the text in it. */
const ProblemContext = createContext<((problem: string | undefined) => void) | undefined>(undefined)

/**
 * Around one control of this folder. The label, the help and the error are tied to it. `error` is what the API or the
 * page found wrong; a field of a request has its error in `TuneryError.param` or `details.field`. It goes when the
 * field is edited, unless it is `live`: judged again at each change.
 */
export function Field({
  label,
  help,
  error,
  live,
  optional,
  hideLabel,
  children,
  className,
}: {
  label: ReactNode
  help?: ReactNode
  error?: ReactNode | undefined
  live?: boolean
  /** Says so: fields are required unless they say otherwise. */
  optional?: boolean | undefined
  hideLabel?: boolean
  children: ReactNode
  className?: string
}) {
  const [problem, setProblem] = useState<string>()
  /** The error that was there when the field was edited. */
  const [edited, setEdited] = useState<ReactNode>()
  useEffect(() => {
    if (!error) setEdited(undefined)
  }, [error])
  const shown = problem ?? (error && (live || error !== edited) ? error : undefined)
  return (
    <BaseField.Root
      invalid={Boolean(shown)}
      className={classes('grid gap-1.5', className)}
      onChange={() => setEdited(error)}
      onClick={() => setEdited(error)}
    >
      <BaseField.Label className={hideLabel ? 'sr-only' : 'font-medium'}>
        {label}
        {optional && <span className="ml-1.5 text-sm font-normal text-muted">optional</span>}
      </BaseField.Label>
      <ProblemContext value={setProblem}>{children}</ProblemContext>
      {shown && (
        <BaseField.Error match className="text-sm text-bad">
          {shown}
        </BaseField.Error>
      )}
      {help && <BaseField.Description className="text-sm text-muted">{help}</BaseField.Description>}
    </BaseField.Root>
  )
}

/** One line of text. Inside a `Field`, or with an `aria-label`. */
export function Input({ className, ...rest }: ComponentProps<'input'>) {
  return <BaseField.Control {...rest} className={classes(controlClass, heightClass, className)} />
}

/** What something is called. */
export function NameField({
  value,
  onChange,
  label = 'Name',
  ...field
}: { value: string; onChange: (value: string) => void; label?: string } & Pick<
  Parameters<typeof Field>[0],
  'help' | 'error' | 'optional'
>) {
  return (
    <Field label={label} {...field}>
      <Input value={value} onChange={({ target }) => onChange(target.value)} maxLength={200} />
    </Field>
  )
}

/** Several lines. Grows with its text up to `maxRows`, where the browser can. */
export function Textarea({
  className,
  rows = 3,
  maxRows = 16,
  mono,
  ...rest
}: ComponentProps<'textarea'> & { maxRows?: number; mono?: boolean }) {
  return (
    <BaseField.Control
      render={<textarea {...rest} rows={rows} />}
      className={classes(
        controlClass,
        'field-sizing-content resize-y px-2.5 py-1.5',
        mono && 'font-mono text-sm',
        className,
      )}
      style={{ minHeight: `calc(${rows} * 1.375rem + 0.75rem)`, maxHeight: `calc(${maxRows} * 1.375rem + 0.75rem)` }}
    />
  )
}

/** What a text could become while it is typed: a sign, or a point, or an exponent that is not whole yet. */
const unfinished = /^[-+]?\d*(?:[.,]\d*)?(e[-+]?)?$/i

/** The number of a text; NaN if it is none. `0,5` and `0.5` are the same, and so are `1,000,000` and `1000000`. */
function numberIn(text: string): number {
  const plain = text.trim().replaceAll(/[\s\u00a0\u202f_']/g, '')
  const ungrouped = /^[-+]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(plain) ? plain.replaceAll(',', '') : plain.replace(',', '.')
  return /^[-+]?(\d+(?:\.\d*)?|\.\d+)(e[-+]?\d+)?$/i.test(ungrouped) ? Number(ungrouped) : Number.NaN
}

interface Bounds {
  min?: number | undefined
  max?: number | undefined
  decimals?: boolean | undefined
}

/** What is wrong with a typed number. It is shown, and never changed silently. */
function numberProblem(text: string, { min, max, decimals }: Bounds): string | undefined {
  if (text.trim() === '') return undefined
  const number = numberIn(text)
  if (Number.isNaN(number)) return unfinished.test(text.trim()) ? 'Not a complete number.' : 'Not a number.'
  if (!decimals && !Number.isInteger(number)) return 'Must be a whole number.'
  if (min !== undefined && max !== undefined && (number < min || number > max))
    return `Must be from ${inWords(min)} to ${inWords(max)}.`
  if (min !== undefined && number < min) return `Must be at least ${inWords(min)}.`
  return max !== undefined && number > max ? `Must be at most ${inWords(max)}.` : undefined
}
const inWords = (value: number) => formatNumber(value, 10)

const written = (value: number | null) => (value === null || Number.isNaN(value) ? '' : String(value))

/**
 * A number with steps. `null` while it is empty or none. Whole numbers, unless `step` is a fraction or `decimals` is
 * set. A form with a wrong number is not sent; see `firstProblem`.
 */
export function NumberInput({
  value,
  onChange,
  min,
  max,
  step = 1,
  decimals = !Number.isInteger(step),
  placeholder,
  disabled,
  ...rest
}: {
  value: number | null
  onChange: (value: number | null) => void
  min?: number
  max?: number | undefined
  step?: number
  decimals?: boolean
  placeholder?: string
  disabled?: boolean
  'aria-label'?: string
}) {
  const [text, setText] = useState(() => written(value))
  const [known, setKnown] = useState(value)
  const read = (from: string) => {
    const number = numberIn(from)
    return Number.isNaN(number) ? null : number
  }
  // Another value from outside stands in place of what was typed.
  if (value !== known) {
    setKnown(value)
    if (value !== read(text)) setText(written(value))
  }
  const problem = numberProblem(text, { min, max, decimals })
  const tell = useContext(ProblemContext)
  useEffect(() => {
    tell?.(problem)
    return () => tell?.(undefined)
  }, [tell, problem])
  const change = (next: string) => {
    setText(next)
    const number = read(next)
    setKnown(number)
    onChange(number)
  }
  const stepBy = (steps: number) => {
    const from = read(text) ?? (steps > 0 ? (min ?? 0) - step : (max ?? 0) + step)
    const to = Math.min(max ?? Number.POSITIVE_INFINITY, Math.max(min ?? Number.NEGATIVE_INFINITY, from + steps * step))
    change(written(Number(to.toPrecision(12))))
  }
  const stepClass =
    'grid w-8 shrink-0 place-items-center text-muted hover:bg-hover hover:text-ink disabled:opacity-40 ' +
    '[&_svg]:size-3.5 any-pointer-coarse:w-10'
  const number = read(text)
  return (
    <div className={classes(controlClass, 'flex h-8.5 overflow-hidden any-pointer-coarse:h-10', problem && 'ring-bad')}>
      <BaseField.Control
        {...rest}
        render={<input inputMode={decimals ? 'decimal' : 'numeric'} autoComplete="off" />}
        value={text}
        placeholder={placeholder}
        disabled={disabled}
        aria-invalid={problem ? true : undefined}
        data-problem={problem}
        onChange={(event) => change(event.target.value)}
        onKeyDown={(event) => {
          const steps = { ArrowUp: 1, ArrowDown: -1 }[event.key]
          if (steps === undefined) return
          event.preventDefault()
          stepBy(steps)
        }}
        className="focus-inset w-full min-w-0 flex-1 rounded-l-md bg-transparent px-2.5"
      />
      <button
        type="button"
        tabIndex={-1}
        aria-label="Decrease"
        className={stepClass}
        disabled={disabled || (number !== null && min !== undefined && number <= min)}
        onClick={() => stepBy(-1)}
      >
        <Minus aria-hidden />
      </button>
      <button
        type="button"
        tabIndex={-1}
        aria-label="Increase"
        className={classes(stepClass, 'rounded-r-md')}
        disabled={disabled || (number !== null && max !== undefined && number >= max)}
        onClick={() => stepBy(1)}
      >
        <Plus aria-hidden />
      </button>
    </div>
  )
}

/** The first control whose text is wrong; nothing that depends on it may be sent. */
export const firstProblem = (within: ParentNode = document): HTMLElement | null =>
  within.querySelector<HTMLElement>('[data-problem]')

/** Enter pressed twice, as a double click, without a change in between: what the form makes is made once. */
const twice_ms = 500

/** A form that sends by Enter, once at a time. Its buttons stand in `footer`, or last in `children`. */
export function Form({
  onSubmit,
  children,
  className,
}: {
  onSubmit: () => void
  children: ReactNode
  className?: string
}) {
  const sent_at = useRef(Number.NEGATIVE_INFINITY)
  return (
    <form
      noValidate
      className={classes('grid gap-4', className)}
      onChange={() => {
        sent_at.current = Number.NEGATIVE_INFINITY
      }}
      onSubmit={(event) => {
        event.preventDefault()
        event.stopPropagation()
        const isBusy = event.currentTarget.querySelector('button[type=submit][aria-busy=true]') !== null
        if (isBusy || event.timeStamp - sent_at.current < twice_ms) return
        const wrong = firstProblem(event.currentTarget)
        if (wrong) return wrong.focus()
        sent_at.current = event.timeStamp
        onSubmit()
      }}
    >
      {children}
    </form>
  )
}

/** The buttons at the end of a form in a dialog: to leave it, and to send it. */
export function FormButtons({
  onCancel,
  busy,
  missing,
  children,
}: {
  onCancel: () => void
  busy: boolean
  /** Why it cannot be sent yet: `Choose a model.` */
  missing?: string | false | undefined
  /** What sending does. */
  children: ReactNode
}) {
  return (
    <div className="flex flex-wrap items-center justify-end gap-2">
      <Button onClick={onCancel}>Cancel</Button>
      <SubmitButton busy={busy} missing={missing}>
        {children}
      </SubmitButton>
    </div>
  )
}

/** Sends the form, or says what it lacks. */
export function SubmitButton({
  busy,
  missing,
  children,
}: {
  busy: boolean
  missing?: string | false | undefined
  children: ReactNode
}) {
  const id = useId()
  return (
    <>
      {missing && (
        <span id={id} className="order-first mr-auto text-sm text-muted">
          {missing}
        </span>
      )}
      <Button
        type="submit"
        variant="primary"
        busy={busy}
        disabled={Boolean(missing)}
        aria-describedby={missing ? id : undefined}
      >
        {children}
      </Button>
    </>
  )
}

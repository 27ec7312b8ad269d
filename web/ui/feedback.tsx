// How something is: statuses, progress, and what a page shows while it has nothing, too little or an error.
import { Progress as BaseProgress } from '@base-ui/react/progress'
import type { UseQueryResult } from '@tanstack/react-query'
import { CircleAlert, CircleCheck, Info, RotateCw, TriangleAlert } from 'lucide-react'
import type { ReactNode } from 'react'
import { TuneryConnectionError, TuneryError } from '../../sdk/index.ts'
import { classes } from '../lib/classes.ts'
import { formError } from '../lib/errors.ts'
import { Button } from './button.tsx'
import { Message } from './values.tsx'

export type Tone = 'neutral' | 'accent' | 'good' | 'warn' | 'bad'
const tones: Record<Tone, string> = {
  neutral: 'bg-hover text-muted',
  accent: 'bg-accent-soft text-accent-ink',
  good: 'bg-good-soft text-good',
  warn: 'bg-warn-soft text-warn',
  bad: 'bg-bad-soft text-bad',
}

/** A word about something: a method, a role, a count. */
export function Badge({ tone = 'neutral', children }: { tone?: Tone | undefined; children: ReactNode }) {
  return (
    <span
      className={classes(
        'inline-flex items-center gap-1 rounded-sm px-1.5 py-px align-middle text-xs font-medium whitespace-nowrap',
        tones[tone],
      )}
    >
      {children}
    </span>
  )
}

const statusTones: Record<string, Tone> = {
  running: 'accent',
  validating: 'accent',
  processing: 'accent',
  starting: 'accent',
  downloading: 'accent',
  in_progress: 'accent',
  completed: 'good',
  ready: 'good',
  valid: 'good',
  active: 'good',
  delivered: 'good',
  passed: 'good',
  failed: 'bad',
  invalid: 'bad',
  error: 'bad',
  refused: 'bad',
  disabled: 'bad',
  paused: 'warn',
  slowed: 'warn',
  pending: 'warn',
  suspended: 'warn',
}
const dots: Record<Tone, string> = {
  neutral: 'bg-faint',
  accent: 'bg-accent-ink animate-shimmer',
  good: 'bg-good',
  warn: 'bg-warn',
  bad: 'bg-bad',
}

/** A status of the API by its own word, with a dot; the colour only repeats the word. */
export function Status({
  status,
  tone = statusTones[status] ?? 'neutral',
}: {
  status: string
  tone?: Tone | undefined
}) {
  return (
    <span
      className={classes(
        'inline-flex items-center gap-1.5 rounded-full px-2 py-px align-middle text-xs font-medium whitespace-nowrap',
        tones[tone],
      )}
    >
      <span aria-hidden className={classes('size-1.5 rounded-full', dots[tone])} />
      {status.replaceAll('_', ' ')}
    </span>
  )
}

/** Progress of 0 to 1; `null` where how far is not known. `label` names it for screen readers. */
export function Progress({
  value,
  label,
  tone = 'accent',
  className,
}: {
  value: number | null
  label: string
  tone?: 'accent' | 'good' | 'warn' | 'bad' | undefined
  className?: string
}) {
  const fill = { accent: 'bg-accent', good: 'bg-good', warn: 'bg-warn', bad: 'bg-bad' }[tone]
  return (
    <BaseProgress.Root
      value={value === null ? null : Math.min(1, Math.max(0, value)) * 100}
      aria-label={label}
      className={className}
    >
      <BaseProgress.Track className="h-1.5 overflow-hidden rounded-full bg-line">
        <BaseProgress.Indicator
          className={classes(
            'h-full rounded-full transition-[width] duration-300',
            fill,
            'data-indeterminate:w-1/4 data-indeterminate:animate-slide',
          )}
        />
      </BaseProgress.Track>
    </BaseProgress.Root>
  )
}

/** The shape of what is loading. Give it the size of what comes, so that nothing jumps. */
export function Skeleton({ className = 'h-4 w-full' }: { className?: string }) {
  return <div aria-hidden data-skeleton className={classes('animate-shimmer rounded-md bg-line', className)} />
}

/** Lines of text that are loading. */
export function SkeletonLines({ lines = 3 }: { lines?: number }) {
  return (
    <div role="status" className="grid gap-3">
      <span className="sr-only">Loading</span>
      {Array.from({ length: lines }, (_, index) => (
        <Skeleton key={index} className={classes('h-4', index % 3 === 2 ? 'w-2/3' : 'w-full')} />
      ))}
    </div>
  )
}

/** What an error says that belongs to none of the form's `fields`. Stands beside what was asked, such as a button. */
export function FormError({
  error,
  fields = [],
  title,
}: {
  error: unknown
  fields?: readonly string[]
  title?: string
}) {
  const message = formError(error, fields)
  return (
    message && (
      <Notice tone="bad" title={title}>
        <Message text={message} />
      </Notice>
    )
  )
}

/** A place with nothing in it yet: what it is for, and the way to the first one. */
export function EmptyState({
  icon,
  title,
  children,
  action,
  compact,
}: {
  icon?: ReactNode
  title: ReactNode
  children?: ReactNode
  action?: ReactNode
  /** In a card beside others: less tall, without the icon. */
  compact?: boolean
}) {
  return (
    <div className={classes('flex flex-col items-center px-6 text-center', compact ? 'py-5' : 'py-12')}>
      {icon && !compact && (
        <div aria-hidden className="mb-3 rounded-lg bg-hover p-2.5 text-muted [&_svg]:size-5">
          {icon}
        </div>
      )}
      <h3 className="font-semibold">{title}</h3>
      {children && <div className="mt-1 max-w-md text-muted">{children}</div>}
      {action && <div className="mt-4 flex flex-wrap justify-center gap-2">{action}</div>}
    </div>
  )
}

const noticeIcons = {
  neutral: <Info aria-hidden />,
  accent: <Info aria-hidden />,
  good: <CircleCheck aria-hidden />,
  warn: <TriangleAlert aria-hidden />,
  bad: <CircleAlert aria-hidden />,
}

/** Something to know, in the page. `tone="bad"` is read out at once. */
export function Notice({
  tone = 'neutral',
  title,
  children,
  action,
}: {
  tone?: Tone | undefined
  title?: ReactNode
  children?: ReactNode
  action?: ReactNode
}) {
  return (
    <div
      role={tone === 'bad' ? 'alert' : undefined}
      className={classes('flex items-start gap-2.5 rounded-lg px-3.5 py-2.5', tones[tone])}
    >
      <span className="mt-0.75 [&_svg]:size-4">{noticeIcons[tone]}</span>
      <div className="min-w-0 flex-1 text-ink">
        {title && <p className="font-medium">{title}</p>}
        {children && <div className={classes(title && 'text-muted')}>{children}</div>}
      </div>
      {action}
    </div>
  )
}

/** What to say of an error, beyond the message that the API gives: it already says what to do. */
function describeError(error: unknown): { title: string; message: string; id?: string } {
  if (error instanceof TuneryConnectionError)
    return {
      title: 'The service cannot be reached',
      message: 'It may be restarting, or the network is down. This page tries again by itself.',
    }
  if (error instanceof TuneryError) {
    const titles: Record<number, string> = {
      403: 'Not allowed',
      404: 'Not found',
      429: 'Too many requests',
      503: 'The service is busy',
    }
    const title = titles[error.status] ?? (error.status >= 500 ? 'The service failed' : 'That did not work')
    return { title, message: error.message, ...(error.status >= 500 && error.request_id && { id: error.request_id }) }
  }
  return { title: 'This part of the page failed', message: error instanceof Error ? error.message : String(error) }
}

/** Whether the same request may work later. */
const mayPass = (error: unknown) => !(error instanceof TuneryError && [400, 403, 404].includes(error.status))

/** An error in place of what it kept from loading, with what to do. */
export function ErrorState({ error, retry }: { error: unknown; retry?: () => void }) {
  const { title, message, id } = describeError(error)
  return (
    <div role="alert" className="flex flex-col items-center px-6 py-12 text-center">
      <div aria-hidden className="mb-3 rounded-lg bg-bad-soft p-2.5 text-bad [&_svg]:size-5">
        <CircleAlert />
      </div>
      <h3 className="font-semibold">{title}</h3>
      <p className="mt-1 max-w-lg text-muted">
        <Message text={message} />
      </p>
      {id && <p className="mt-1 font-mono text-xs text-faint">{id}</p>}
      {retry && mayPass(error) && (
        <div className="mt-4">
          <Button icon={<RotateCw aria-hidden />} onClick={retry}>
            Try again
          </Button>
        </div>
      )}
    </div>
  )
}

/**
 * A query's three states: `skeleton` while it loads, the error with a retry, and `children` of its data. Old data stays
 * while a refresh fails, with a line that says so.
 */
export function Loaded<T>({
  query,
  skeleton = <SkeletonLines />,
  children,
}: {
  query: UseQueryResult<T>
  skeleton?: ReactNode
  children: (data: T) => ReactNode
}) {
  if (query.data !== undefined)
    return (
      <>
        {query.isError && !(query.error instanceof TuneryConnectionError) && (
          <div className="mb-3">
            <Notice
              tone="warn"
              title="This may be out of date"
              action={
                <Button size="sm" onClick={() => query.refetch()}>
                  Try again
                </Button>
              }
            >
              <Message text={query.error.message} />
            </Notice>
          </div>
        )}
        {children(query.data)}
      </>
    )
  if (query.isError) return <ErrorState error={query.error} retry={() => void query.refetch()} />
  return skeleton
}

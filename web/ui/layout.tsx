// The frame of a page: title, cards, tabs, facts.
import { Tabs as BaseTabs } from '@base-ui/react/tabs'
import { ChevronRight } from 'lucide-react'
import { type ReactNode, useEffect } from 'react'
import { classes } from '../lib/classes.ts'
import { TextLink } from './button.tsx'

/** One page: sets the document's title, has the only `h1`. In the shell all are `wide`: titles stay where they are. */
export function Page({
  title,
  name,
  status,
  description,
  actions,
  back,
  width = 'wide',
  children,
}: {
  title: ReactNode
  /** Beside the title. */
  status?: ReactNode | undefined
  /** For the browser's tab, where `title` is not a text. */
  name?: string
  description?: ReactNode | undefined
  /** Buttons at the right of the title, the main one last. */
  actions?: ReactNode
  /** The list that this page is from. */
  back?: { to: string; label: string }
  width?: 'narrow' | 'wide' | 'full'
  children: ReactNode
}) {
  const text = name ?? (typeof title === 'string' ? title : undefined)
  useEffect(() => {
    document.title = text ? `${text} · Tunery` : 'Tunery'
  }, [text])
  const widths = { narrow: 'max-w-3xl', wide: 'max-w-7xl', full: 'max-w-none' }
  return (
    <div className={classes('mx-auto w-full px-4 py-5 sm:px-6 sm:py-6', widths[width])}>
      <header className="mb-5 flex flex-wrap items-start gap-x-4 gap-y-3">
        <div className="min-w-0 flex-1 basis-64">
          {back && (
            <nav aria-label="Breadcrumb" className="mb-1 flex items-center gap-1 text-sm text-muted">
              <TextLink to={back.to} quiet>
                {back.label}
              </TextLink>
              <ChevronRight aria-hidden className="size-3.5" />
            </nav>
          )}
          <div className="flex min-h-8.5 flex-wrap items-center gap-x-3 gap-y-1">
            <h1 className="min-w-0 text-2xl font-semibold tracking-tight wrap-anywhere">{title}</h1>
            {status}
          </div>
          {description && <div className="mt-1 max-w-3xl text-muted">{description}</div>}
        </div>
        {actions && <div className="flex flex-wrap items-center gap-2">{actions}</div>}
      </header>
      {children}
    </div>
  )
}

/** A part of a page with a heading. `flush`: its content reaches the edges, as tables do. */
export function Card({
  title,
  description,
  actions,
  flush,
  children,
  className,
}: {
  title?: ReactNode
  description?: ReactNode | undefined
  actions?: ReactNode
  flush?: boolean
  children?: ReactNode
  className?: string
}) {
  return (
    <section className={classes('min-w-0 rounded-lg bg-surface ring-1 ring-line', className)}>
      {(title || actions) && (
        <div className={classes('flex flex-wrap items-center gap-x-4 gap-y-2 px-4 pt-3.5', flush ? 'pb-3' : 'pb-1')}>
          <div className="min-w-0 flex-1 basis-40">
            {title && <h2 className="text-lg font-semibold">{title}</h2>}
            {description && <p className="text-sm text-muted">{description}</p>}
          </div>
          {actions && <div className="flex flex-wrap items-center gap-2">{actions}</div>}
        </div>
      )}
      {children !== undefined && <div className={classes(!flush && 'px-4 pt-2.5 pb-4')}>{children}</div>}
    </section>
  )
}

/** One figure with its name. */
export function Stat({ label, value, note }: { label: ReactNode; value: ReactNode; note?: ReactNode }) {
  return (
    <div className="min-w-0">
      <dt className="text-sm text-muted">{label}</dt>
      <dd className="mt-0.5 text-xl font-semibold tracking-tight">{value}</dd>
      {note && <dd className="mt-0.5 text-sm text-muted">{note}</dd>}
    </div>
  )
}

/** Names and values. */
export function Facts({
  facts,
  columns = 1,
}: {
  facts: (readonly [ReactNode, ReactNode] | false | null)[]
  columns?: 1 | 2
}) {
  return (
    <dl className={classes('grid gap-x-8 gap-y-2', columns === 2 && 'sm:grid-cols-2')}>
      {facts.map((fact, index) =>
        fact ? (
          <div key={index} className="flex min-w-0 flex-wrap items-baseline gap-x-4">
            <dt className="w-36 shrink-0 text-muted">{fact[0]}</dt>
            <dd className="min-w-0 flex-1 basis-40 wrap-anywhere">{fact[1]}</dd>
          </div>
        ) : null,
      )}
    </dl>
  )
}

/** Parts of one page. Panels that are not shown are not rendered. */
export function Tabs({
  tabs,
  value,
  onChange,
  defaultValue,
  label,
}: {
  tabs: { value: string; label: ReactNode; count?: number | undefined; panel: ReactNode }[]
  /** Controlled, such as by a search parameter, so that a link leads to a tab. */
  value?: string
  onChange?: (value: string) => void
  defaultValue?: string
  label: string
}) {
  return (
    <BaseTabs.Root
      value={value}
      defaultValue={defaultValue ?? tabs[0]?.value}
      onValueChange={(next) => onChange?.(String(next))}
    >
      <BaseTabs.List
        aria-label={label}
        className="relative mb-4 flex gap-1 overflow-x-auto border-b border-line [scrollbar-width:none]"
      >
        {tabs.map((tab) => (
          <BaseTabs.Tab
            key={tab.value}
            value={tab.value}
            className={classes(
              'focus-inset flex items-center gap-1.5 rounded-t-md px-3 py-2 font-medium whitespace-nowrap ' +
                'text-muted select-none hover:text-ink',
              '-mb-px border-b-2 border-transparent data-active:border-accent-ink data-active:text-ink',
            )}
          >
            {tab.label}
            {tab.count !== undefined && <span className="text-sm font-normal text-muted">{tab.count}</span>}
          </BaseTabs.Tab>
        ))}
      </BaseTabs.List>
      {tabs.map((tab) => (
        <BaseTabs.Panel key={tab.value} value={tab.value} className="outline-offset-4">
          {tab.panel}
        </BaseTabs.Panel>
      ))}
    </BaseTabs.Root>
  )
}

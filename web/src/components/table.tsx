// A table. On a narrow screen each row becomes a card, with the name of the column beside each value.

import type { ComponentChildren } from "preact";

export interface Column<Row> {
    name: string;
    render: (row: Row) => ComponentChildren;
    right?: boolean; // aligned right, for numbers
}

interface Props<Row> {
    label: string;
    columns: readonly Column<Row>[];
    rows: readonly Row[];
    keyOf: (row: Row) => string;
    empty?: string;
    className?: string;
}

export function Table<Row>({
    label,
    columns,
    rows,
    keyOf,
    empty = "There is nothing here.",
    className = "",
}: Props<Row>) {
    if (rows.length === 0) return <p class="note">{empty}</p>;
    return (
        <div class={`table ${className}`}>
            <table aria-label={label}>
                <thead>
                    <tr>
                        {columns.map((column) => (
                            <th key={column.name} scope="col" class={column.right ? "right" : ""}>
                                {column.name}
                            </th>
                        ))}
                    </tr>
                </thead>
                <tbody>
                    {rows.map((row) => (
                        <tr key={keyOf(row)}>
                            {columns.map((column) => (
                                <td key={column.name} data-name={column.name} class={column.right ? "right" : ""}>
                                    {column.render(row)}
                                </td>
                            ))}
                        </tr>
                    ))}
                </tbody>
            </table>
        </div>
    );
}

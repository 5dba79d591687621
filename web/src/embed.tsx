// One terminal, for pages of other products: /embed/terminal?ticket=…

import "./style/base.css";

import { render } from "preact";

function Embedded() {
    return <p class="note" aria-busy="true">Connecting…</p>;
}

render(<Embedded />, document.getElementById("app")!);
